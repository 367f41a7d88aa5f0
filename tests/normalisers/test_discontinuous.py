from __future__ import annotations

import math

import torch

from sharpmax.normalisers import Discontinuous


def made(heads: int = 2, width: int = 4) -> Discontinuous:
    return Discontinuous(heads, width, hidden=8, generator=torch.Generator().manual_seed(0))


def test_is_the_definition() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(1, 2, n, 4, generator=generator) for n in (3, 7))
    normaliser = made()
    ours = normaliser(query, key, scale=0.5)
    for head in range(2):
        inner, bias, outer = (
            x[head] for x in (normaliser.inner, normaliser.bias, normaliser.outer)
        )
        for row in range(3):
            logits = []
            for k in key[0, head]:
                step = torch.tensor([float(x > 0) for x in (k @ inner + bias[0])])
                logits.append(0.5 * query[0, head, row] @ (k + step @ outer))
            torch.testing.assert_close(ours[0, head, row], torch.stack(logits).softmax(-1))


def test_tells_keys_apart_that_are_as_close_as_one_likes() -> None:
    normaliser = made(heads=1, width=1)
    edge = float((-normaliser.bias.detach() / normaliser.inner.detach())[0, 0, 0])
    key = torch.tensor([edge - 1e-4, edge + 1e-4])[None, None, :, None]
    before, after = normaliser.logits(torch.ones(1, 1, 1, 1), key, 1.0)[0, 0, 0].tolist()
    assert abs(after - before) > 0.9 * abs(float(normaliser.outer.detach()[0, 0, 0]))


def test_disperses_all_the_same() -> None:
    normaliser = made(heads=1)
    query = torch.full((1, 1, 1, 4), 0.2)
    # Keys in [0, 1] have logits in [0, 0.8], and each step adds to one what it adds, or nothing.
    spread = 0.8 + float((0.2 * normaliser.outer.detach().sum(-1)).abs().sum())
    for n in (1000, 100_000):
        key = torch.rand(1, 1, n, 4, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            largest = float(normaliser(query, key, scale=1.0).max())
        assert largest <= math.exp(spread) / n < 0.01


def test_gradient_is_that_of_the_sigmoid() -> None:
    normaliser = made(heads=1)
    key = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(3))
    normaliser.logits(torch.ones(1, 1, 1, 4), key, 1.0).sum().backward()
    before = key[0, 0] @ normaliser.inner[0] + normaliser.bias[0]
    slope = torch.sigmoid(before) * torch.sigmoid(-before)
    expected = (slope * normaliser.outer[0].sum(-1)).sum(0)
    torch.testing.assert_close(normaliser.bias.grad[0, 0], expected)
