from __future__ import annotations

import numpy as np
import torch

from sharpmax.normalisers import OffByOne


def test_is_the_definition() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    exponentials = np.exp(logits.double().numpy())
    expected = exponentials / (1 + exponentials.sum(-1, keepdims=True))
    np.testing.assert_allclose(OffByOne().weights(logits).numpy(), expected, atol=1e-6)


def test_may_give_its_weight_to_nothing_or_all_of_it() -> None:
    assert OffByOne().weights(torch.full((3,), -1e4)).sum() == 0
    assert OffByOne().weights(torch.full((4,), 1e4)).tolist() == [0.25] * 4
