"""Attend over ranks: the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sharpmax._attention import Alignment, Implementation, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.distributed._call import Call, run
from sharpmax.distributed._layout import Order
from sharpmax.policies import Identity, Policy

Placement = Literal["replicated", "sharded"]
Method = Literal["auto", "tree", "ring", "all_gather", "ulysses"]

_PLAIN = Identity()


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    group: dist.ProcessGroup | None = ...,
    mesh: DeviceMesh | None = ...,
    query_placement: Placement = ...,
    method: Method = ...,
    order: Order = ...,
    key_lengths: Sequence[int] | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[False] = ...,
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: object = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    group: dist.ProcessGroup | None = ...,
    mesh: DeviceMesh | None = ...,
    query_placement: Placement = ...,
    method: Method = ...,
    order: Order = ...,
    key_lengths: Sequence[int] | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[True],
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: object = ...,
) -> tuple[Tensor, RowStatistics]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    policy: Policy | None = None,
    group: dist.ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
    query_placement: Placement = "replicated",
    method: Method = "auto",
    order: Order = "contiguous",
    key_lengths: Sequence[int] | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    window: int | None = None,
    impl: Implementation = "auto",
    return_statistics: bool = False,
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
    detach_temperature: bool = False,
    normaliser: object = None,
) -> Tensor | tuple[Tensor, RowStatistics]:
    """Attend to keys that are spread over ranks, at the temperature that a policy gives each row.

    The result is that of `sharpmax.attention` on the whole sequence, exact up to rounding. Every
    rank of the group makes the same call, with the keys and values that it holds. Shards may have
    any lengths, also none. Positions for `is_causal`, `window` and `alignment` are those of the
    whole sequence.

    Gradients by keys and values are those of the local shard, for the losses of all ranks. With
    replicated queries all ranks have to compute the same loss; gradients by the query, the sink and
    the policy's parameters are then whole on every rank. With sharded queries every rank has the
    loss of its own rows; gradients by sink and parameters are its share, to be summed over ranks
    like those of weights. The gradient by a mask stays local.

    Args:
        query: [..., heads, queries, width]: all queries, or the shard of this rank.
        key: [..., key heads, keys, width], the shard of this rank.
        value: [..., key heads, keys, value width], the shard of this rank.
        attn_mask: its columns are the keys of this rank if queries are replicated. If queries are
            sharded, its rows are those of this rank and its columns all keys, in the order of the
            sequence.
        dropout_p: only 0 is supported.
        is_causal: as in `sharpmax.attention`, and so are the others that are not named here.
        scale: likewise.
        enable_gqa: likewise.
        policy: likewise; the same on every rank, with one entry per head of the whole layer.
        group: the process group; all ranks if neither it nor a mesh is given.
        mesh: a mesh with one axis, in place of a group.
        query_placement: "replicated" or "sharded".
        method: "tree" for replicated queries; "ring", "all_gather" or "ulysses" for sharded ones.
            "auto" takes Ulysses if heads divide among ranks and there is no mask, otherwise
            all-gather up to 256 MiB of keys and values, or a ring.
        order: the order in which `sharpmax.distributed.shard` gave out keys and sharded queries.
        key_lengths: the number of keys on every rank, if that is known. It saves one message per
            call, and ranks then compare their settings only once per process group. Sharded queries
            have the lengths of the keys.
        softcap: as in `sharpmax.attention`.
        sink: likewise, the same on every rank; it counts once.
        window: likewise.
        impl: likewise.
        return_statistics: likewise, for the rows of this rank.
        alignment: likewise.
        sink_role: likewise.
        detach_temperature: likewise.
        normaliser: only None is supported.

    Returns:
        The output for the queries of this rank, and their `RowStatistics` if asked for. A DTensor
        if query, key and value are DTensors whose length is sharded; they bring their mesh and the
        placement of queries along.

    Raises:
        TypeError, ValueError, NotImplementedError: as `sharpmax.attention` does.
        RanksDisagreeError: on every rank, if ranks were called with different settings, or one of
            them with wrong arguments.
        RankLostError: if ranks cannot communicate, as when one has ended.

    Example:
        >>> import os, torch, sharpmax
        >>> _ = os.environ.setdefault("MASTER_ADDR", "localhost")
        >>> torch.distributed.init_process_group(  # one process; torchrun starts many
        ...     "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        ... )
        >>> query, key, value = torch.randn(3, 1, 2, 8, 16).unbind()
        >>> policy = sharpmax.policies.Exponential(1.0)
        >>> sharpmax.distributed.attention(query, key, value, policy=policy).shape
        torch.Size([1, 2, 8, 16])
        >>> torch.distributed.destroy_process_group()
    """
    call = Call(
        is_causal, scale, enable_gqa, group, mesh, query_placement, method, order, key_lengths,
        softcap, sink, window, impl, alignment, sink_role, detach_temperature,
        return_statistics,
    )  # fmt: skip
    refused = None
    if dropout_p:
        refused = "dropout_p: expected 0 over ranks, since no rank sees all weights of a row"
    elif normaliser is not None:
        refused = "normaliser: expected None over ranks; sharpmax.attention serves normalisers"
    policy = _PLAIN if policy is None else policy
    output, statistics = run(call, (query, key, value, attn_mask), policy, refused)
    assert output is not None
    if not return_statistics:
        return output
    assert statistics is not None
    return output, statistics


def attention_statistics(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
    query_placement: Placement = "replicated",
    method: Method = "auto",
    order: Order = "contiguous",
    key_lengths: Sequence[int] | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    window: int | None = None,
    impl: Implementation = "auto",
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
) -> RowStatistics:
    """Measure every row of an attention whose keys are spread over ranks.

    The arguments are those of `sharpmax.distributed.attention`, without values and a policy.

    Returns:
        `RowStatistics` of the untempered rows of this rank, without gradient.

    Raises:
        TypeError, ValueError, NotImplementedError: as `sharpmax.distributed.attention` does.
        RanksDisagreeError, RankLostError: likewise.
    """
    call = Call(
        is_causal, scale, enable_gqa, group, mesh, query_placement, method, order, key_lengths,
        softcap, sink, window, impl, alignment, sink_role, True, True,
    )  # fmt: skip
    with torch.no_grad():
        statistics = run(call, (query, key, None, attn_mask), None, None)[1]
    assert statistics is not None
    return statistics
