from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sharpmax.normalisers import Selective, _selective

WIDTH, RANK = 6, 4


def made(heads: int = 2) -> Selective:
    generator = torch.Generator().manual_seed(0)
    normaliser = Selective(heads, WIDTH, RANK, generator=generator)
    for parameter in normaliser.parameters():
        parameter.data *= 3.0
    return normaliser


def slow(normaliser: Selective, key: Tensor, visible: Tensor) -> Tensor:
    """F of one row of one batch entry: [heads, keys]."""
    heads, keys, _ = key.shape
    total = torch.zeros(heads, keys)
    seen = [j for j in range(keys) if visible[j]]
    for head in range(heads):
        for j in seen[1:]:
            for i in seen:
                if i > j:
                    a = key[head, i] @ normaliser.selecting[head]
                    b = key[head, j] @ normaliser.selected[head]
                    total[head, j] += torch.relu(a @ b / math.sqrt(RANK))
    return total


@pytest.mark.parametrize("block", [3, 256])
@pytest.mark.parametrize("queries", [1, 9])
def test_is_the_definition(queries: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_selective, "BLOCK", block)
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(1, 2, n, WIDTH, generator=generator) for n in (queries, 9))
    normaliser = made()
    visible = torch.ones(9, 9, dtype=torch.bool).tril()[-queries:]
    visible[:, 3] = False
    ours = normaliser(query, key, scale=0.5, visible=visible)
    for row in range(queries):
        masking = slow(normaliser, key[0], visible[row])
        logits = 0.5 * (key[0] @ query[0, :, row, :, None])[..., 0] - masking
        expected = logits.masked_fill(~visible[row], -torch.inf).softmax(-1)
        if visible[row].any():
            torch.testing.assert_close(ours[0, :, row], expected, atol=1e-6, rtol=1e-5)


def test_gradients_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    key = torch.randn(1, 2, 10, WIDTH, generator=torch.Generator().manual_seed(1))
    gradients = []
    for block in (4, 256):
        monkeypatch.setattr(_selective, "BLOCK", block)
        normaliser = made()
        normaliser(key[:, :, -1:], key, scale=0.5).square().sum().backward()
        gradients.append([parameter.grad for parameter in normaliser.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_generator_a_head() -> None:
    def generators(*seeds: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    both = Selective(2, WIDTH, generator=generators(7, 8))
    alone = Selective(1, WIDTH, generator=generators(8))
    assert torch.equal(both.selecting[1:], alone.selecting)
    # One generator for all draws heads one after the other: company changes nothing either.
    more, fewer = (Selective(n, WIDTH, generator=generators(7)[0]) for n in (3, 2))
    assert torch.equal(more.selected[:2], fewer.selected)


def test_memory_of_one_query_is_linear() -> None:
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                sizes.append(result.numel())
            return result

    key = torch.randn(1, 1, 2048, WIDTH)
    with torch.no_grad(), Watch():
        made(heads=1)(key[:, :, :1], key, scale=1.0)
    assert max(sizes) == 256 * 2048
