"""Ways to give every rank whole rows: all keys for its queries, or all positions of its heads.

Both then run attention as on one device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sharpmax import _attention
from sharpmax._attention import Problem
from sharpmax._statistics import RowStatistics
from sharpmax.distributed._layout import Layout, joined
from sharpmax.distributed._ranks import Ranks, applied
from sharpmax.policies import Policy


def gather(
    ranks: Ranks,
    problem: Problem,
    policy: Policy | None,
    impl: str,
    layouts: tuple[Layout, Layout],
    detach_temperature: bool,
    measured: bool,
) -> tuple[Tensor | None, RowStatistics | None]:
    """Gather all keys and values; attend with the queries that this rank has."""
    queries, keys = layouts
    key = joined(problem.key, 2, keys, ranks)
    value = None if problem.value is None else joined(problem.value, 2, keys, ranks)
    parts = []
    for piece in queries.pieces[ranks.rank]:
        mask = problem.attn_mask
        part = replace(
            problem,
            query=problem.query[:, :, piece.here],
            key=key,
            value=value,
            attn_mask=None if mask is None else mask[:, :, piece.here],
            offset=problem.offset + piece.start,
        )
        parts.append(_local(part, policy, impl, detach_temperature, measured))
    return _concatenated(parts)


def ulysses(
    ranks: Ranks,
    problem: Problem,
    policy: Policy | None,
    impl: str,
    layouts: tuple[Layout, Layout],
    detach_temperature: bool,
    measured: bool,
    one_mask: bool,
) -> tuple[Tensor | None, RowStatistics | None]:
    """Give each rank all positions of some heads; attend; give the positions back."""
    queries, keys = layouts
    share = problem.query.shape[1] // ranks.size
    heads = slice(ranks.rank * share, (ranks.rank + 1) * share)
    key, value = problem.key, problem.value
    if key.shape[1] % ranks.size:  # several ranks share a key head
        copies = ranks.size // key.shape[1]
        key = key.repeat_interleave(copies, dim=1)
        value = None if value is None else value.repeat_interleave(copies, dim=1)
    part = replace(
        problem,
        query=_by_heads(problem.query, queries, ranks),
        key=_by_heads(key, keys, ranks),
        value=None if value is None else _by_heads(value, keys, ranks),
        attn_mask=_mask_of_heads(problem.attn_mask, queries, ranks, heads, one_mask),
        sink=None if problem.sink is None else problem.sink[heads],
    )
    own = None if policy is None else policy.take_heads(heads)
    output, statistics = _local(part, own, impl, detach_temperature, measured)
    lengths = queries.lengths

    def back(tensor: Tensor) -> Tensor:
        ordered = queries.by_rank(tensor, 2)
        parts = [x.movedim(2, 0) for x in ordered.split(lengths, 2)]
        shape = (lengths[ranks.rank], tensor.shape[0], share, *tensor.shape[3:])
        received = applied(_Exchanged, ranks, [shape] * ranks.size, *parts)
        return torch.cat([x.movedim(0, 2) for x in received], 1)

    return (
        None if output is None else back(output),
        None if statistics is None else RowStatistics(*map(back, statistics)),
    )


def unsupported_by_ulysses(problem: Problem, ranks: int) -> str | None:
    """Say why heads cannot be divided among ranks, or None if they can."""
    heads, key_heads = problem.query.shape[1], problem.key.shape[1]
    if heads % ranks or not heads:
        return f"query: expected heads that divide among {ranks} ranks, got {heads}"
    if key_heads % ranks and ranks % max(key_heads, 1):
        return f"key: expected heads that divide among {ranks} ranks, or divide it, got {key_heads}"
    return None


def _local(
    problem: Problem, policy: Policy | None, impl: str, detach_temperature: bool, measured: bool
) -> tuple[Tensor | None, RowStatistics | None]:
    if policy is None:
        return None, _attention.measure(problem, impl)
    output, statistics = _attention.attend(problem, policy, impl, detach_temperature, measured)
    return output, statistics if measured else None


def _concatenated(
    parts: list[tuple[Tensor | None, RowStatistics | None]],
) -> tuple[Tensor | None, RowStatistics | None]:
    outputs = [output for output, _ in parts if output is not None]
    rows = [statistics for _, statistics in parts if statistics is not None]
    return (
        torch.cat(outputs, 2) if outputs else None,
        RowStatistics(*(torch.cat(x, 2) for x in zip(*rows, strict=True))) if rows else None,
    )


def _by_heads(tensor: Tensor, layout: Layout, ranks: Ranks) -> Tensor:
    """Exchange [batch, heads, own positions, width] for [batch, own heads, positions, width]."""
    share = tensor.shape[1] // ranks.size
    parts = [part.movedim(2, 0) for part in tensor.split(share, 1)]
    shapes = [(length, *parts[0].shape[1:]) for length in layout.lengths]
    received = applied(_Exchanged, ranks, shapes, *parts)
    return layout.in_order(torch.cat(received), 0).movedim(0, 2)


def _mask_of_heads(
    mask: Tensor | None, layout: Layout, ranks: Ranks, heads: slice, one_mask: bool
) -> Tensor | None:
    """Gather the rows of the mask, once if all heads have one mask."""
    if mask is None:
        return None
    batch, count, _, columns = mask.shape
    narrow = mask[:, :1] if one_mask else mask
    kind = narrow.dtype
    if kind == torch.bool:
        narrow = narrow.to(torch.uint8)
    whole = joined(narrow, 2, layout, ranks).to(kind)
    return whole.expand(batch, count, layout.total, columns)[:, heads]


class _Exchanged(torch.autograd.Function):
    """Send one tensor to each rank and receive one from each. Backward: the way back."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, shapes: list[tuple[int, ...]], *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.shapes = ranks, [tuple(part.shape) for part in parts]
        return _exchange(ranks, parts, shapes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None, *_exchange(ctx.ranks, gradients, ctx.shapes)


def _exchange(ranks: Ranks, parts: Any, shapes: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    received = ranks.exchanged(parts, [torch.Size(shape).numel() for shape in shapes])
    return tuple(x.reshape(shape) for x, shape in zip(received, shapes, strict=True))
