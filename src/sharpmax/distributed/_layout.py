"""Which positions of a sequence each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sharpmax.distributed._ranks import Ranks, applied

Order = Literal["contiguous", "zigzag"]


class Piece(NamedTuple):
    """Consecutive positions, and where a rank holds them."""

    start: int
    stop: int
    first: int
    """The place of `start` among what the rank holds."""

    @property
    def here(self) -> slice:
        """Their places among what the rank holds."""
        return slice(self.first, self.first + self.stop - self.start)


@dataclass(frozen=True)
class Layout:
    """The pieces of each rank."""

    pieces: tuple[tuple[Piece, ...], ...]

    @property
    def lengths(self) -> list[int]:
        """How many positions each rank holds."""
        return [sum(piece.stop - piece.start for piece in pieces) for pieces in self.pieces]

    @property
    def total(self) -> int:
        """The length of the sequence."""
        return sum(self.lengths)

    def positions(self, rank: int) -> Tensor:
        """Return the positions that a rank holds, in its order."""
        ranges = [torch.arange(piece.start, piece.stop) for piece in self.pieces[rank]]
        return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.long)

    def in_order(self, joined: Tensor, dim: int) -> Tensor:
        """Put what all ranks hold, rank after rank, into the order of the sequence."""
        if all(len(pieces) == 1 for pieces in self.pieces):
            return joined
        held = torch.cat([self.positions(rank) for rank in range(len(self.pieces))])
        return joined.index_select(dim, torch.argsort(held).to(joined.device))

    def by_rank(self, tensor: Tensor, dim: int) -> Tensor:
        """Undo `in_order`."""
        if all(len(pieces) == 1 for pieces in self.pieces):
            return tensor
        held = torch.cat([self.positions(rank) for rank in range(len(self.pieces))])
        return tensor.index_select(dim, held.to(tensor.device))


def layout_of(lengths: Sequence[int], order: Order) -> Layout:
    """Return the layout of ranks that hold so many positions each.

    Raises:
        ValueError: for lengths that `shard` does not give in zigzag order.
    """
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"order: expected 'contiguous' or 'zigzag', got {order!r}")
    if order == "contiguous":
        ends = list(accumulate(lengths))
        starts = [end - length for end, length in zip(ends, lengths, strict=True)]
        return Layout(tuple((Piece(*ends, 0),) for ends in zip(starts, ends, strict=True)))
    found = _zigzag(sum(lengths), len(lengths))
    if found.lengths != list(lengths):
        raise ValueError(
            f"order: expected {found.lengths} positions on the ranks in zigzag order, got "
            f"{list(lengths)}; sharpmax.distributed.shard gives these"
        )
    return found


def _zigzag(total: int, ranks: int) -> Layout:
    """Cut into two parts per rank: a rank has one from the start and its mirror from the end."""
    sizes = _even(total, 2 * ranks)
    starts = [0, *accumulate(sizes)]
    pieces = []
    for rank in range(ranks):
        mirror = 2 * ranks - 1 - rank
        head = Piece(starts[rank], starts[rank + 1], 0)
        pieces.append((head, Piece(starts[mirror], starts[mirror + 1], sizes[rank])))
    return Layout(tuple(pieces))


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def even_layout(total: int, ranks: int, order: Order) -> Layout:
    """Return the layout of a sequence that is cut as evenly as possible."""
    if order == "zigzag":
        return _zigzag(total, ranks)
    return layout_of(_even(total, ranks), order)


def positions(
    length: int,
    *,
    order: Order = "contiguous",
    group: dist.ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
) -> Tensor:
    """Return the positions that `shard` gives this rank, as rotary embeddings need them.

    Args:
        length: that of the whole sequence.
        order: as for `shard`.
        group: the process group; all ranks if neither it nor a mesh is given.
        mesh: a mesh with one axis, in place of a group.

    Returns:
        Integers, one per position that the rank holds, in its order.
    """
    ranks = Ranks(group, mesh)
    return even_layout(length, ranks.size, order).positions(ranks.rank)


def shard(
    tensor: Tensor,
    dim: int = -2,
    *,
    order: Order = "contiguous",
    group: dist.ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
) -> Tensor:
    """Return the part of a tensor that this rank holds.

    In zigzag order a sequence is cut into two parts per rank, and rank r of R holds the parts r and
    2R - 1 - r. With a causal mask every rank then has the same work. Cuts differ by one position
    at most if the length does not divide.

    Args:
        tensor: the whole, the same on every rank.
        dim: the axis of the sequence.
        order: "contiguous" or "zigzag".
        group: the process group; all ranks if neither it nor a mesh is given.
        mesh: a mesh with one axis, in place of a group.
    """
    ranks = Ranks(group, mesh)
    pieces = even_layout(tensor.shape[dim], ranks.size, order).pieces[ranks.rank]
    return torch.cat([tensor.narrow(dim, at.start, at.stop - at.start) for at in pieces], dim)


def unshard(
    tensor: Tensor,
    dim: int = -2,
    *,
    order: Order = "contiguous",
    group: dist.ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
) -> Tensor:
    """Return the whole of which every rank holds a part, on every rank: the inverse of `shard`.

    The gradient of a part is the sum of the gradients that the ranks have of it.

    Args:
        tensor: the part of this rank. Contiguous parts may have any lengths.
        dim: the axis of the sequence.
        order: "contiguous" or "zigzag".
        group: the process group; all ranks if neither it nor a mesh is given.
        mesh: a mesh with one axis, in place of a group.
    """
    ranks = Ranks(group, mesh)
    length = torch.tensor([tensor.shape[dim]], device=tensor.device)
    lengths = torch.cat(ranks.gathered(length)).tolist()
    return joined(tensor, dim, layout_of(lengths, order), ranks)


def joined(tensor: Tensor, dim: int, layout: Layout, ranks: Ranks) -> Tensor:
    """Gather the parts of all ranks and put them in order."""
    moved = tensor.movedim(dim, 0)
    whole: Tensor = applied(_Joined, moved, tuple(layout.lengths), ranks)
    return layout.in_order(whole, 0).movedim(0, dim)


class _Joined(torch.autograd.Function):
    """Gather along the first axis. Backward: send each rank its part, and add."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, lengths: tuple[int, ...], ranks: Ranks) -> Tensor:
        ctx.lengths, ctx.ranks = lengths, ranks
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        found = ranks.gathered(padded)
        return torch.cat([part[:length] for part, length in zip(found, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ranks, own = ctx.ranks, ctx.lengths[ctx.ranks.rank]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        parts = gradient.to(wide).split(list(ctx.lengths))
        shape = (own, *gradient.shape[1:])
        size = parts[ranks.rank].numel()
        received = ranks.exchanged(parts, [size] * ranks.size)
        return torch.stack(received).sum(0).reshape(shape).to(gradient.dtype), None, None
