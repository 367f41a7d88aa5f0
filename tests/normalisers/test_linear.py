from __future__ import annotations

import math

import torch

from sharpmax.normalisers import Linear


def phi(x: float) -> float:
    return x + 1.0 if x > 0 else math.exp(x)


def test_is_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, n, 3, generator=generator) for n in (4, 6))
    gained = Linear(heads=2)
    gained.gain.data[1] = 3.0
    plain = gained(query, key, scale=0.5).detach()
    normalised = Linear(normalise=True)(query, key, scale=0.5)
    for head, gain in enumerate([1.0, 3.0]):
        for row in range(4):
            products = torch.tensor(
                [
                    sum(
                        phi(q) * phi(k)
                        for q, k in zip(query[0, head, row].tolist(), other.tolist(), strict=True)
                    )
                    for other in key[0, head]
                ]
            )
            torch.testing.assert_close(plain[0, head, row], 0.5 * gain * products)
            torch.testing.assert_close(normalised[0, head, row], products / products.sum())


def test_is_linear_attention() -> None:
    query, key, value = torch.randn(3, 1, 2, 7, 4)
    features, others = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    expected = (features @ (others.mT @ value)) / (features @ others.sum(2)[..., None])
    ours = Linear(normalise=True)(query, key, scale=1.0) @ value
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
