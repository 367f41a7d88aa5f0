from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
from sharpmax.normalisers import Differential


def test_is_the_difference_of_pairs_of_heads() -> None:
    logits = torch.randn(3, 4, 5, 20, generator=torch.Generator().manual_seed(0))
    normaliser = Differential(heads=2)
    assert normaliser.maps == 2
    normaliser.subtracted.data[1] = 0.3
    ours = normaliser.weights(logits).detach().numpy()
    for head, subtracted in enumerate([0.8, 0.3]):
        for row in range(5):
            first, second = (
                oracle.weights(logits[1, 2 * head + k, row].double().numpy()) for k in (0, 1)
            )
            np.testing.assert_allclose(ours[1, head, row], first - subtracted * second, atol=1e-6)
            assert ours[1, head, row].sum() == pytest.approx(1 - subtracted, abs=1e-5)


def test_disperses() -> None:
    normaliser = Differential(heads=1)
    for n in (100, 10_000):
        logits = torch.zeros(2, 1, n)
        logits[0, 0, 0] = logits[1, 0, 1] = 3.0
        largest = float(normaliser.weights(logits).detach().abs().max())
        assert largest <= 1.8 * np.exp(3.0) / n
