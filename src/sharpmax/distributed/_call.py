"""Check the arguments of one call, agree on them with the other ranks, choose a method and run."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sharpmax._attention import (
    IMPLEMENTATIONS,
    Alignment,
    Problem,
    SinkRole,
    check,
    check_mask,
    choose,
    fold,
)
from sharpmax._statistics import RowStatistics
from sharpmax.distributed import _temperature
from sharpmax.distributed._agreement import agree, describe, on_device
from sharpmax.distributed._blocks import Blocks
from sharpmax.distributed._dtensor import unwrap
from sharpmax.distributed._layout import Layout, Order, Piece, layout_of
from sharpmax.distributed._ranks import Ranks
from sharpmax.distributed._ring import Ring
from sharpmax.distributed._tree import Tree
from sharpmax.distributed._whole import gather, ulysses, unsupported_by_ulysses
from sharpmax.policies import Hard, Policy

METHODS = {"replicated": ("tree",), "sharded": ("ring", "all_gather", "ulysses")}

GATHERED_AT_MOST = 1 << 28
""""auto" gathers keys and values of up to so many bytes, and passes more around a ring."""


@dataclass
class Call:
    """The settings of one call."""

    is_causal: bool
    scale: float | None
    enable_gqa: bool
    group: dist.ProcessGroup | None
    mesh: DeviceMesh | None
    query_placement: str
    method: str
    order: Order
    key_lengths: Sequence[int] | None
    softcap: float | None
    sink: Tensor | None
    window: int | None
    impl: str
    alignment: Alignment
    sink_role: SinkRole
    detach_temperature: bool
    measured: bool
    """Whether the statistics of the rows are asked for."""

    @property
    def sharded(self) -> bool:
        """Whether each rank has queries of its own."""
        return self.query_placement == "sharded"


def run(
    call: Call, tensors: tuple[Any, ...], policy: Policy | None, refused: str | None
) -> tuple[Tensor | None, RowStatistics | None]:
    """Run a call on query, key, value and mask. `policy` is None to measure alone."""
    query, key, value, mask = tensors
    unwrapped = unwrap(query, key, value, mask, call.sink, call.group or call.mesh)
    if unwrapped is not None:
        query, key, value, mask, call.sink = unwrapped.tensors
        call.group = unwrapped.group
        call.query_placement = "sharded" if unwrapped.sharded else "replicated"
    ranks = Ranks(call.group, call.mesh)
    error: Exception | None = None
    prepared: _Prepared | None = None
    try:
        if refused is not None:
            raise NotImplementedError(refused)
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy: expected a sharpmax policy or None, got {policy!r}")
        policy = None if policy is None else policy.current()
        prepared = _prepare(call, ranks, query, key, value, mask, policy)
    except (TypeError, ValueError, NotImplementedError) as problem:
        error = problem
    lengths = [0, 0, 0, 0] if prepared is None else prepared.lengths
    settings = {} if prepared is None else prepared.settings
    known = None
    if call.key_lengths is not None:
        own, _, *of_mask = lengths
        given = [] if prepared is None else call.key_lengths
        known = [[n if call.sharded else own, n, *of_mask] for n in given]
    device = on_device(query, ranks) if isinstance(query, Tensor) else torch.device("cpu")
    found = agree(ranks, settings, lengths, device, error, known)
    assert prepared is not None
    output, statistics = prepared.run(call, ranks, policy, found)
    if unwrapped is not None:
        output = None if output is None else unwrapped.wrapped(output)
        if statistics is not None:
            statistics = RowStatistics(*map(unwrapped.wrapped, statistics))
    return output, statistics


def _prepare(
    call: Call,
    ranks: Ranks,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: Tensor | None,
    policy: Policy | None,
) -> _Prepared:
    """Check what one rank can check alone."""
    if call.query_placement not in METHODS:
        raise ValueError(
            f"query_placement: expected 'replicated' or 'sharded', got {call.query_placement!r}"
        )
    methods = METHODS[call.query_placement]
    if call.method != "auto" and call.method not in methods:
        raise ValueError(
            f"method: expected one of {', '.join(('auto', *methods))} for "
            f"{call.query_placement} queries, got {call.method!r}"
        )
    folded = fold(query, key, value, mask, enable_gqa=call.enable_gqa)
    problem = check(
        folded.query, folded.key, folded.value, attn_mask=None, is_causal=call.is_causal,
        alignment=call.alignment, scale=call.scale, softcap=call.softcap, sink=call.sink,
        sink_role=call.sink_role, window=call.window, enable_gqa=call.enable_gqa, dropout=0.0,
    )  # fmt: skip
    batch, heads, queries = problem.rows
    keys = problem.key.shape[2]
    if call.key_lengths is not None:
        try:
            expected = [operator.index(n) for n in call.key_lengths]
        except TypeError:
            raise TypeError(
                f"key_lengths: expected one integer per rank, got {call.key_lengths!r}"
            ) from None
        if len(expected) != ranks.size or expected[ranks.rank] != keys:
            raise ValueError(
                f"key_lengths: expected the keys of {ranks.size} ranks, {keys} on rank "
                f"{ranks.rank}, got {expected}"
            )
    columns, one_mask = 1, True
    if folded.mask is not None:
        given: Any = folded.mask
        shape: Any = getattr(given, "shape", ())
        columns = shape[-1] if call.sharded and shape else keys
        one_mask = len(shape) < 3 or shape[-3] == 1
        given = check_mask(given, problem.query, (batch, heads, queries, columns))
        problem = replace(problem, attn_mask=given)
    if policy is not None:
        policy.check_heads(heads)
        if isinstance(policy, Hard) and problem.sink is not None and not problem.sink_counted:
            raise ValueError("sink_role: expected 'key' with Hard, since beta is infinite")
    if call.method == "ulysses" and (reason := unsupported_by_ulysses(problem, ranks.size)):
        raise NotImplementedError(f"method='ulysses': {reason}")
    impl = choose(call.impl, replace(problem, sink=None), policy)
    tensors = {"query": query, "key": key, "value": value, "mask": mask, "sink": call.sink}
    tensors |= {} if policy is None else vars(policy)
    gradients = torch.is_grad_enabled() and [
        name for name, x in tensors.items() if isinstance(x, Tensor) and x.requires_grad
    ]
    settings = {
        "dtype": problem.query.dtype,
        "batch size": batch,
        "heads": heads,
        "key heads": problem.key.shape[1],
        "width": problem.query.shape[3],
        "value width": None if problem.value is None else problem.value.shape[3],
        "queries": None if call.sharded else queries,
        "is_causal": bool(call.is_causal),
        "window": call.window,
        "alignment": call.alignment,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "sink": None if problem.sink is None else call.sink_role,
        "attn_mask": None if mask is None else ("one" if one_mask else "one per head"),
        "policy": describe(policy),
        "query_placement": call.query_placement,
        "method": call.method,
        "order": call.order,
        "key_lengths": None if call.key_lengths is None else [int(n) for n in call.key_lengths],
        "detach_temperature": bool(call.detach_temperature),
        "return_statistics": bool(call.measured),
        "gradients": gradients,
    }
    return _Prepared(problem, folded, impl, settings, [queries, keys, columns, 0], one_mask)


@dataclass(frozen=True)
class _Prepared:
    """Arguments that one rank has checked."""

    problem: Problem
    folded: Any
    impl: str
    settings: dict[str, Any]
    lengths: list[int]
    one_mask: bool

    def run(
        self, call: Call, ranks: Ranks, policy: Policy | None, found: list[list[int]]
    ) -> tuple[Tensor | None, RowStatistics | None]:
        """Compute, now that the lengths of all ranks are known."""
        keys = layout_of([each[1] for each in found], call.order)
        queries = (
            layout_of([each[0] for each in found], call.order)
            if call.sharded
            else Layout(((Piece(0, self.lengths[0], 0),),) * ranks.size)
        )
        for rank, each in enumerate(found):
            if call.sharded and each[2] not in (1, keys.total):
                raise ValueError(
                    f"attn_mask: expected {keys.total} columns, one per key of all ranks, got "
                    f"{each[2]} on rank {rank}"
                )
        all_queries = queries.total if call.sharded else self.lengths[0]
        offset = keys.total - all_queries if call.alignment == "lower_right" else 0
        problem = replace(self.problem, offset=offset)
        if call.sharded and problem.attn_mask is not None:
            mask = problem.attn_mask.expand(*problem.rows, keys.total)
            problem = replace(problem, attn_mask=mask)
        output, statistics = self._by_method(call, ranks, policy, problem, (queries, keys))
        output = None if output is None else output.to(problem.query.dtype)
        unfold = self.folded.unfold
        return (
            None if output is None else unfold(output),
            None if statistics is None else RowStatistics(*map(unfold, statistics)),
        )

    def _by_method(
        self,
        call: Call,
        ranks: Ranks,
        policy: Policy | None,
        problem: Problem,
        layouts: tuple[Layout, Layout],
    ) -> tuple[Tensor | None, RowStatistics | None]:
        method = call.method
        if method == "auto":
            method = _best(problem, policy, ranks, layouts[1]) if call.sharded else "tree"
        if method in ("all_gather", "ulysses"):
            how = call.detach_temperature, call.measured
            whole = (ranks, problem, policy, call.impl, layouts, *how)
            return ulysses(*whole, self.one_mask) if method == "ulysses" else gather(*whole)
        queries, keys = layouts
        blocks = Blocks(
            replace(problem, sink=None),
            IMPLEMENTATIONS[self.impl],
            queries.pieces[ranks.rank],
            local_mask=not call.sharded,
        )
        tensors = problem.query, problem.key, problem.value, problem.attn_mask
        reached: _temperature.Keys = (
            Tree(ranks, blocks, tensors, keys.pieces[ranks.rank])
            if method == "tree"
            else Ring(ranks, blocks, tensors, keys)
        )
        sink = problem.sink, problem.sink_counted
        if policy is None:
            return None, _temperature.measure(reached, *sink)
        return _temperature.attend(reached, policy, *sink, call.detach_temperature)


def _best(problem: Problem, policy: Policy | None, ranks: Ranks, keys: Layout) -> str:
    """Choose a method for sharded queries from what all ranks have in common."""
    if problem.attn_mask is None and unsupported_by_ulysses(problem, ranks.size) is None:
        return "ulysses"
    width = problem.key.shape[3] + (0 if problem.value is None else problem.value.shape[3])
    size = problem.key.shape[0] * problem.key.shape[1] * keys.total * width
    small = size * problem.key.element_size() <= GATHERED_AT_MOST
    # A ring passes all keys once for every step of a solve.
    return "all_gather" if small or (policy is not None and policy.needs_logits) else "ring"
