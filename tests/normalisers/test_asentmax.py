from __future__ import annotations

import math

import torch

from sharpmax.normalisers import ASEntmax, Entmax


def test_is_entmax_with_the_scale_of_the_row() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, n, 4, generator=generator) for n in (3, 9))
    normaliser = ASEntmax(heads=2, width=4, alpha=1.5, delta=0.5, reach=3.0)
    normaliser.to_beta.data = torch.randn(2, 4, 1, generator=generator)
    normaliser.to_gamma.data = torch.randn(2, 4, 1, generator=generator)
    visible = torch.ones(3, 9, dtype=torch.bool).tril(5)
    ours = normaliser(query, key, scale=0.7, visible=visible).detach()
    for head in range(2):
        for row in range(3):
            q, n = query[0, head, row].double(), 6 + row
            u, v = (x.data[head, :, 0].double() for x in normaliser.parameters())
            beta = math.log1p(math.exp(float(q @ u)))
            gamma = 3.0 * math.tanh(float(q @ v))
            scale = 0.5 + beta * math.log(n + 1) ** gamma
            logits = scale * 0.7 * key[0, head, :n].double() @ q
            expected = Entmax(1.5).weights(logits).float()
            torch.testing.assert_close(ours[0, head, row, :n], expected, atol=1e-5, rtol=1e-4)


def test_begins_with_the_same_scale_at_every_length() -> None:
    normaliser = ASEntmax(heads=1, width=2)
    query = torch.ones(1, 1, 1, 2)
    for keys in (1, 10, 1000):
        key = torch.linspace(0, 1, keys)[None, None, :, None].expand(1, 1, keys, 2)
        expected = Entmax().weights((1 + math.log(2)) * query @ key.mT)
        torch.testing.assert_close(normaliser(query, key, scale=1.0).detach(), expected)
