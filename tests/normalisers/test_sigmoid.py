from __future__ import annotations

import numpy as np
import torch

from sharpmax.normalisers import Sigmoid


def test_is_the_definition() -> None:
    logits = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    visible = torch.ones(5, 12, dtype=torch.bool).tril(7)
    normaliser = Sigmoid(heads=2)
    normaliser.bias.data[1] = 0.7
    ours = normaliser.weights(logits, visible).detach().numpy()
    for head, bias in enumerate([0.0, 0.7]):
        for row in range(5):
            n = 8 + row
            e = logits[head, row, :n].double().numpy()
            expected = 1 / (1 + n * np.exp(-e - bias))
            np.testing.assert_allclose(ours[head, row, :n], expected, rtol=1e-5)
            assert (ours[head, row, :n] <= np.exp(e + bias) / n).all()


def test_keys_do_not_compete() -> None:
    logits = torch.zeros(4)
    alone = Sigmoid().weights(logits)
    logits[0] = 50.0
    assert torch.equal(Sigmoid().weights(logits)[1:], alone[1:])
