from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
from sharpmax.normalisers import Local, TopK

LOGITS = torch.randn(10, 30, generator=torch.Generator().manual_seed(0))
VISIBLE = torch.rand(10, 30, generator=torch.Generator().manual_seed(1)) < 0.7


@pytest.mark.parametrize("size", [1, 4, 25, 100])
@pytest.mark.parametrize("kind", [TopK, Local])
def test_is_softmax_of_the_part(kind: type, size: int) -> None:
    ours = kind(size).weights(LOGITS, VISIBLE)
    for row, visible, weights in zip(LOGITS, VISIBLE, ours, strict=True):
        seen = np.flatnonzero(visible.numpy())
        values = row.double().numpy()
        part = seen[np.argsort(values[seen])][-size:] if kind is TopK else seen[-size:]
        kept = np.full(30, -np.inf)
        kept[part] = values[part]
        np.testing.assert_allclose(weights.numpy(), oracle.weights(kept), atol=1e-6)


@pytest.mark.parametrize("normaliser", [TopK(4), Local(4)])
def test_no_more_share_the_weight_when_there_are_many(normaliser: TopK | Local) -> None:
    weights = normaliser.weights(torch.zeros(100_000))
    assert weights.max() == 0.25
    assert (weights > 0).sum() == 4
