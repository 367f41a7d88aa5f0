"""Attention problems that are cut into shards, run on ranks, and put together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import sharpmax
from attention_cases import Case, cases
from gloo import Pool
from sharpmax.distributed._layout import Layout, even_layout, layout_of


@dataclass
class Cut:
    """A case, and which positions each rank gets."""

    case: Case
    keys: Layout
    queries: Layout | None
    order: str
    method: str

    def __repr__(self) -> str:
        lengths = self.keys.lengths, None if self.queries is None else self.queries.lengths
        return f"Cut({self.case!r}, {self.method}, {self.order}, {lengths})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@st.composite
def cuts(draw: st.DrawFn, ranks: int, method: str, **kinds: Any) -> Cut:
    """Draw a case and cut it: evenly in zigzag order, or anywhere."""
    case = draw(cases(**kinds))
    queries, keys = case.query.shape[2], case.key.shape[2]
    if draw(st.booleans()):
        layouts = [even_layout(n, ranks, "zigzag") for n in (keys, queries)]
        order = "zigzag"
    else:
        layouts = []
        for n in (keys, queries):
            ends = sorted(draw(st.integers(0, n)) for _ in range(ranks - 1))
            lengths = [b - a for a, b in zip([0, *ends], [*ends, n], strict=True)]
            layouts.append(layout_of(lengths, "contiguous"))
        order = "contiguous"
    return Cut(case, layouts[0], None if method == "tree" else layouts[1], order, method)


def run(
    pool: Pool, cut: Cut, gradients: bool = True, detach: bool = False, **options: Any
) -> tuple[Tensor, sharpmax.RowStatistics, dict[str, Tensor]]:
    """Run a case on all ranks; return the whole output, statistics and gradients."""
    leaves, rest = parts(cut.case)
    rest |= {"method": cut.method, "order": cut.order, "detach_temperature": detach} | options
    sharded = cut.queries is not None
    rest["query_placement"] = "sharded" if sharded else "replicated"
    per_rank = []
    for rank in range(pool.size):
        local = {name: _local(name, x, cut, rank) for name, x in leaves.items()}
        weights = output_weights(cut.case)
        if cut.queries is not None:
            weights = weights[:, :, cut.queries.positions(rank)]
        mask = rest.get("attn_mask")
        own = rest if mask is None else rest | {"attn_mask": _local("attn_mask", mask, cut, rank)}
        per_rank.append((local, cut.case.policy, own, weights, gradients))
    found = pool.call(attend, *per_rank)
    outputs, statistics, grads = zip(*found, strict=True)

    def rows(parts: Any) -> Tensor:
        if cut.queries is None:
            for other in parts[1:]:
                assert torch.equal(parts[0].nan_to_num(), other.nan_to_num())
            return parts[0]
        return cut.queries.in_order(torch.cat(parts, 2), 2)

    whole = {
        name: _whole(name, [each[name] for each in grads], leaves[name], cut) for name in grads[0]
    }
    entries = [rows(entry) for entry in zip(*statistics, strict=True)]
    return rows(outputs), sharpmax.RowStatistics(*entries), whole


def alone(
    case: Case, impl: str = "auto", gradients: bool = True, detach: bool = False
) -> tuple[Tensor, sharpmax.RowStatistics, dict[str, Tensor]]:
    """Run a case on one device."""
    leaves, rest = parts(case)
    rest |= {"impl": impl, "detach_temperature": detach}
    return attend(leaves, case.policy, rest, output_weights(case), gradients, sharpmax.attention)


def attend(
    leaves: dict[str, Tensor],
    policy: Any,
    options: dict[str, Any],
    weights: Tensor,
    gradients: bool,
    function: Any = None,
) -> Any:
    """Attend, and differentiate a weighted sum of the output. This runs on every rank."""
    function = function or sharpmax.distributed.attention
    leaves = {name: x.detach().clone().requires_grad_(gradients) for name, x in leaves.items()}
    output, statistics = function(**leaves, **options, policy=policy, return_statistics=True)
    found: dict[str, Tensor] = {}
    if gradients:
        given = list(leaves.values())
        loss = (output.to(weights.dtype) * weights).sum()
        grads = torch.autograd.grad(loss, given, allow_unused=True)
        found = {
            name: torch.zeros_like(x) if g is None else g
            for (name, x), g in zip(leaves.items(), grads, strict=True)
        }
    return output.detach(), sharpmax.RowStatistics(*(x.detach() for x in statistics)), found


def parts(case: Case) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Part a case into the tensors that can have gradients and other options."""
    options = dict(case.options)
    leaves = {"query": case.query, "key": case.key, "value": case.value}
    for name in ("attn_mask", "sink"):
        if isinstance(options.get(name), Tensor) and options[name].is_floating_point():
            leaves[name] = options.pop(name)
    return leaves, options


def output_weights(case: Case) -> Tensor:
    """The weights of the outputs in the loss."""
    shape = (*case.query.shape[:3], case.value.shape[3])
    wide = torch.promote_types(case.query.dtype, torch.float32)
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=wide).reshape(shape)


def _local(name: str, tensor: Tensor, cut: Cut, rank: int) -> Tensor:
    axis, layout = _axis(name, tensor, cut)
    return tensor if layout is None else tensor.index_select(axis, layout.positions(rank))


def _axis(name: str, tensor: Tensor, cut: Cut) -> tuple[int, Layout | None]:
    if name in ("key", "value"):
        return 2, cut.keys
    if name == "query" and cut.queries is not None:
        return 2, cut.queries
    if name == "attn_mask" and cut.queries is None and tensor.shape[-1] == cut.keys.total:
        return tensor.ndim - 1, cut.keys
    rows = cut.case.query.shape[2]
    if name == "attn_mask" and cut.queries is not None and tensor.ndim > 1:
        return (tensor.ndim - 2, cut.queries) if tensor.shape[-2] == rows else (0, None)
    return 0, None


def _whole(name: str, found: list[Tensor], like: Tensor, cut: Cut) -> Tensor:
    axis, layout = _axis(name, like, cut)
    if layout is not None:
        return layout.in_order(torch.cat(found, axis), axis)
    if name == "attn_mask" or cut.queries is not None:
        return torch.stack(found).sum(0)  # each rank has its share
    for other in found[1:]:
        assert torch.equal(found[0].nan_to_num(), other.nan_to_num()), name
    return found[0]
