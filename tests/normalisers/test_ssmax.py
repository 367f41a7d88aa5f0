from __future__ import annotations

import math

import numpy as np
import torch

import oracle
from sharpmax.normalisers import LogLength, SSMax

LOGITS = torch.randn(2, 20, 40, generator=torch.Generator().manual_seed(0))
VISIBLE = torch.ones(20, 40, dtype=torch.bool).tril(20)


def test_scale_is_from_what_a_row_sees() -> None:
    normaliser = SSMax(heads=2, initial=0.5)
    normaliser.scale.data[1] = 2.0
    scaled, plain = normaliser.weights(LOGITS, VISIBLE), LogLength(16).weights(LOGITS, VISIBLE)
    for query in range(20):
        n = 21 + query
        for head, scale in enumerate([0.5, 2.0]):
            row = LOGITS[head, query, :n].double().numpy()
            expected = oracle.weights(row, scale * math.log(n))
            ours = scaled[head, query, :n].detach().numpy()
            np.testing.assert_allclose(ours, expected, atol=1e-6)
            expected = oracle.weights(row, math.log(n) / math.log(16))
            np.testing.assert_allclose(plain[head, query, :n].numpy(), expected, atol=1e-6)


@torch.no_grad()
def test_keeps_a_gap_above_one_over_s_and_loses_one_below() -> None:
    for gap, kept in [(1.5, True), (0.5, False)]:
        largest = []
        for n in (100, 1000, 10_000):
            logits = torch.zeros(1, 1, n)
            logits[..., 0] = gap
            largest.append(float(SSMax(heads=1).weights(logits).max()))
        assert (largest == sorted(largest)) == kept
        assert (largest[-1] > 0.9) == kept
