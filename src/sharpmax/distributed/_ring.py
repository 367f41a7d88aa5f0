"""Queries that are spread like the keys: keys travel around the ranks.

Keys pass every rank once to measure the rows and, with their values, once more to weigh them. The
next keys travel while the present ones are worked on. No rank ever holds more than two shards.

The backward pass repeats both rounds, computes each block again, and lets the gradients of keys and
values travel along until they are back where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sharpmax._arrays import namespace
from sharpmax._attention.temperature import through_statistics
from sharpmax._statistics import RowStatistics, rescale
from sharpmax.distributed._blocks import Blocks
from sharpmax.distributed._layout import Layout, Piece
from sharpmax.distributed._ranks import Ranks, applied

Sums = Callable[..., tuple[Tensor, ...]]
"""(tensors of the rows, tensors that travel, pieces of the keys) -> sums over these keys."""


class Ring:
    """Reach the keys of all ranks by passing them on."""

    def __init__(
        self,
        ranks: Ranks,
        blocks: Blocks,
        tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
        layout: Layout,
    ) -> None:
        self._query, self._key, self._value, self._mask = tensors
        self._ranks, self._blocks, self._layout = ranks, blocks, layout

    def measure(self) -> RowStatistics:
        found, ties = self._measured()
        top = found.maximum

        def sums(rows: list[Any], moving: list[Tensor], pieces: Sequence[Piece]) -> Any:
            local = self._blocks.measure(rows[0], moving[0], rows[1], pieces)
            tied = torch.where(local.maximum == top, local.maximum / ties, 0.0)
            return tied, *rescale(namespace(top), local, top)

        inputs = [self._query, self._mask, self._key]
        return RowStatistics(*applied(_Measured, self._travels(sums, 1), *found, *inputs))

    @torch.no_grad()
    def _measured(self) -> tuple[RowStatistics, Tensor]:
        """Return the statistics, and in how many blocks the largest logit of a row is."""
        found = ties = None
        for (key,), pieces in self._round(self._key):
            here = self._blocks.measure(self._query, key, self._mask, pieces)
            if found is None or ties is None:
                found, ties = here, torch.ones_like(here.mass)
                continue
            again = (here.maximum == found.maximum).to(ties.dtype)
            ties = torch.where(here.maximum > found.maximum, 1.0, ties + again)
            found = found.merge(here)
        assert found is not None
        assert ties is not None
        return found, ties

    def temper(self, beta: Tensor, maximum: Tensor) -> Tensor:
        self._goes_on(True)
        return self._temper(beta, maximum)

    def _temper(self, beta: Tensor, maximum: Tensor) -> Tensor:
        def sums(rows: list[Any], moving: list[Tensor], pieces: Sequence[Piece]) -> Any:
            query, mask, beta = rows
            return (self._blocks.temper(query, moving[0], mask, pieces, beta, maximum),)

        inputs = [self._query, self._mask, beta, self._key]
        (found,) = applied(_Summed, self._travels(sums, 1), *inputs)
        tempered: Tensor = found
        return tempered

    def solved(self) -> None:
        """Pass keys on for the ranks whose rows are not solved yet."""
        batch, heads, queries, _ = self._query.shape
        ones = torch.ones(
            (batch, heads, queries),
            dtype=self._blocks.problem.statistics_dtype,
            device=self._query.device,
        )
        while self._goes_on(False):
            with torch.no_grad():
                self._temper(ones, torch.zeros_like(ones))

    def _goes_on(self, here: bool) -> bool:
        """Whether any rank needs one more round."""
        flag = torch.tensor([float(here)], device=self._query.device)
        return bool(self._ranks.largest(flag).item())

    def attend(self, beta: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        assert self._value is not None

        def sums(rows: list[Any], moving: list[Tensor], pieces: Sequence[Piece]) -> Any:
            (query, mask, beta), (key, value) = rows, moving
            return self._blocks.attend(query, key, value, mask, pieces, beta, maximum)

        inputs = [self._query, self._mask, beta, self._key, self._value]
        output, mass = applied(_Summed, self._travels(sums, 2), *inputs)
        return output, mass

    def _travels(self, sums: Sums, moving: int) -> Travel:
        return Travel(self._ranks, self._layout, sums, moving)

    def _round(self, *tensors: Tensor) -> Iterator[tuple[list[Tensor], Sequence[Piece]]]:
        return self._travels(lambda *_: (), len(tensors)).round(tensors)


class Travel:
    """One round of tensors over the ranks, and what is summed on the way.

    Args:
        ranks: the ranks.
        layout: which keys each of them holds.
        sums: gives what one block adds.
        moving: how many of the inputs travel; they come last. All have the layout [batch, heads,
            keys, width].
    """

    def __init__(self, ranks: Ranks, layout: Layout, sums: Sums, moving: int) -> None:
        self.ranks, self.layout, self.sums, self.moving = ranks, layout, sums, moving

    def split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
        """Part the inputs into those of the rows and those that travel."""
        at = len(inputs) - self.moving
        return list(inputs[:at]), list(inputs[at:])

    def round(self, tensors: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], tuple[Piece, ...]]]:
        """Yield the tensors of each rank, one's own first; the next travel meanwhile."""
        ranks = self.ranks
        present = _packed(tensors)
        for step in range(ranks.size):
            source = (ranks.rank - step) % ranks.size
            following = present.new_empty(self._size(tensors, source - 1))
            if step + 1 < ranks.size:
                passing = ranks.passed_on([(present, following)])
            yield self.unpacked(present, tensors, source), self.layout.pieces[source]
            if step + 1 < ranks.size:
                passing.wait()
                present = following

    def forward(self, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
        """Sum over all blocks, without gradients."""
        rows, moving = self.split(inputs)
        total: tuple[Tensor, ...] | None = None
        for present, pieces in self.round(moving):
            found = self.sums(rows, present, pieces)
            total = found if total is None else tuple(map(torch.add, total, found))
        assert total is not None
        return total

    def backward(
        self, inputs: Sequence[Any], wants: Sequence[bool], gradients: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients of all inputs, given those of the sums."""
        rows, moving = self.split(inputs)
        wide = torch.promote_types(moving[0].dtype, torch.float32)
        of_rows: list[Tensor | None] = [None] * len(rows)
        ranks = self.ranks
        carried = moving[0].new_empty(0, dtype=wide)
        for step, (present, pieces) in enumerate(self.round(moving)):
            source = (ranks.rank - step) % ranks.size
            # Gradients of these keys come from the rank before while the block is computed.
            coming = carried.new_empty(self._size(moving, source) if step else 0)
            passing = ranks.passed_on([(carried, coming)]) if step else None
            leaves = [
                x.detach().requires_grad_(want) if isinstance(x, Tensor) else x
                for x, want in zip([*rows, *present], wants, strict=True)
            ]
            found = self._through_block(leaves, pieces, gradients)
            for place, gradient in enumerate(found[: len(rows)]):
                if gradient is not None:
                    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                    before = of_rows[place]
                    of_rows[place] = gradient if before is None else before + gradient
            own = _packed([
                torch.zeros_like(x, dtype=wide) if gradient is None else gradient.to(wide)
                for x, gradient in zip(present, found[len(rows) :], strict=True)
            ])  # fmt: skip
            if passing is not None:
                passing.wait()
                own = own + coming
            carried = own
        if ranks.size > 1:
            home = carried.new_empty(self._size(moving, ranks.rank))
            ranks.passed_on([(carried, home)]).wait()
            carried = home
        of_moving = self.unpacked(carried, moving, ranks.rank)
        return [
            None if not want else _like(x, gradient)
            for x, want, gradient in zip(inputs, wants, [*of_rows, *of_moving], strict=True)
        ]

    def _through_block(
        self, leaves: list[Any], pieces: tuple[Piece, ...], gradients: Sequence[Tensor]
    ) -> list[Tensor | None]:
        rows, moving = self.split(leaves)
        wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        with torch.enable_grad():
            sums = self.sums(rows, moving, pieces)
        pairs = [(x, g) for x, g in zip(sums, gradients, strict=True) if x.requires_grad]
        if not pairs:
            return [None] * len(leaves)
        outputs, given = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
        return [next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in leaves]

    def _size(self, tensors: Sequence[Tensor], source: int) -> int:
        length = self.layout.lengths[source % self.ranks.size]
        return sum(x.shape[0] * x.shape[1] * length * x.shape[3] for x in tensors)

    def unpacked(self, flat: Tensor, like: Sequence[Tensor], source: int) -> list[Tensor]:
        """Return the tensors of a rank from one flat message."""
        length = self.layout.lengths[source]
        shapes = [(*x.shape[:2], length, x.shape[3]) for x in like]
        parts = flat.split([torch.Size(shape).numel() for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _like(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(tensor) if gradient is None else gradient.to(tensor.dtype)


class _Summed(torch.autograd.Function):
    """Sum over the blocks of all ranks."""

    @staticmethod
    def forward(ctx: Any, travel: Travel, *inputs: Any) -> tuple[Tensor, ...]:
        ctx.travel = travel
        ctx.save_for_backward(*inputs)
        return travel.forward(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        wants = ctx.needs_input_grad[1:]
        return None, *ctx.travel.backward(ctx.saved_tensors, wants, gradients)


class _Measured(torch.autograd.Function):
    """Statistics that are known, with the gradients of their sums over blocks."""

    @staticmethod
    def forward(ctx: Any, travel: Travel, *arguments: Any) -> tuple[Tensor, ...]:
        found, inputs = arguments[:4], arguments[4:]
        ctx.travel = travel
        ctx.save_for_backward(*found, *inputs)
        ctx.mark_non_differentiable(found[3])
        return tuple(x.view_as(x) for x in found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        found, inputs = RowStatistics(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        by_maximum, by_mass, by_moment = gradients[:3]
        to_maximum = through_statistics(found, by_maximum, by_mass, by_moment)[1]
        wants = ctx.needs_input_grad[5:]
        results = ctx.travel.backward(inputs, wants, (to_maximum, by_mass, by_moment))
        return None, None, None, None, None, *results
