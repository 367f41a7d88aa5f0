from __future__ import annotations

import numpy as np
import torch

from sharpmax.normalisers import StickBreaking


def slow(row: np.ndarray) -> np.ndarray:
    weights, left = np.zeros(len(row)), 1.0
    for i in reversed(range(len(row))):
        share = 1 / (1 + np.exp(-row[i]))
        weights[i] = left * share
        left *= 1 - share
    return weights


def test_is_the_definition() -> None:
    logits = 2 * torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    visible = torch.rand(8, 20, generator=torch.Generator().manual_seed(1)) < 0.7
    ours = StickBreaking().weights(logits, visible)
    for row, seen, weights in zip(logits, visible, ours, strict=True):
        expected = slow(row[seen].double().numpy())
        np.testing.assert_allclose(weights[seen].numpy(), expected, atol=1e-6)
        assert weights.sum() <= 1 + 1e-6


def test_large_logits_do_not_spoil_their_neighbours() -> None:
    # A key that takes all leaves exactly nothing; one that takes nothing leaves exactly all.
    weights = StickBreaking().weights(torch.tensor([0.0, 1e6, 0.0, -1e6, 0.0]))
    torch.testing.assert_close(weights, torch.tensor([0.0, 0.25, 0.25, 0.0, 0.5]))


def test_what_is_before_a_key_does_not_matter_to_it() -> None:
    last = [float(StickBreaking().weights(torch.ones(n))[-1]) for n in (1, 100, 10_000)]
    assert len(set(last)) == 1
