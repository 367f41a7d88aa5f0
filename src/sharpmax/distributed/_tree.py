"""Queries that every rank has: each measures and weighs its own keys, and the sums are reduced.

Forward: one number per row by MAX, three by SUM, and width + 1 by SUM. Backward: one number per row
by SUM for the gradient by beta, and the gradient by the query. Gradients by keys and values stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sharpmax._arrays import namespace
from sharpmax._attention.temperature import through_statistics
from sharpmax._statistics import RowStatistics, rescale
from sharpmax.distributed._blocks import Blocks
from sharpmax.distributed._layout import Piece
from sharpmax.distributed._ranks import Ranks, applied, keep_shapes, no_gradients


class Tree:
    """Reach the keys of all ranks by reductions."""

    def __init__(
        self,
        ranks: Ranks,
        blocks: Blocks,
        tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
        keys: Sequence[Piece],
    ) -> None:
        query, self._key, self._value, self._mask = tensors
        self._ranks, self._blocks, self._pieces = ranks, blocks, keys
        self._query = ranks.used_by_all(query)
        self._inputs = self._query, self._key, self._value, self._mask

    def measure(self) -> RowStatistics:
        local = self._blocks.measure(self._query, self._key, self._mask, self._pieces)
        return RowStatistics(*applied(_Merged, self._ranks, *local, *self._inputs))

    def temper(self, beta: Tensor, maximum: Tensor) -> Tensor:
        beta = self._ranks.used_by_all(beta)
        sums = self._blocks.temper(self._query, self._key, self._mask, self._pieces, beta, maximum)
        return self._ranks.summed(sums, *self._inputs, beta)

    def solved(self) -> None:
        """All ranks solve for the same rows, and end together."""

    def attend(self, beta: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        assert self._value is not None
        beta = self._ranks.used_by_all(beta)
        output, mass = self._blocks.attend(
            self._query, self._key, self._value, self._mask, self._pieces, beta, maximum
        )
        part = torch.cat([output, mass[..., None]], -1)
        both = self._ranks.summed(part, *self._inputs, beta)
        return both[..., :-1], both[..., -1]


class _Merged(torch.autograd.Function):
    """Merge statistics over ranks.

    Backward, all ranks have the same gradients of what was merged, and each passes them to its own
    part. What depends on the maximum itself goes to the ranks that have it; of an entropy nothing
    does, and rounding is taken for nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        ranks: Ranks,
        maximum: Tensor,
        mass: Tensor,
        moment: Tensor,
        count: Tensor,
        *made_of: Tensor | None,
    ) -> tuple[Tensor, ...]:
        keep_shapes(ctx, made_of)
        local = RowStatistics(maximum, mass, moment, count)
        top = ranks.largest(maximum)
        part_mass, part_moment = rescale(namespace(top), local, top)
        # In double precision, so that no number of keys is too large to be counted.
        numbers = torch.stack([x.double() for x in (part_mass, part_moment, count)])
        total_mass, total_moment, total = ranks.total(numbers)
        top = torch.where(torch.isnan(total_mass), torch.nan, top)
        found = RowStatistics(
            top, total_mass.to(mass.dtype), total_moment.to(mass.dtype), total.to(count.dtype)
        )
        ctx.ranks = ranks
        ctx.save_for_backward(maximum, part_mass, part_moment, *found)
        ctx.mark_non_differentiable(found.count)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        by_maximum, by_mass, by_moment = gradients[:3]
        maximum, part_mass, part_moment, *found = ctx.saved_tensors
        to_maximum = through_statistics(RowStatistics(*found), by_maximum, by_mass, by_moment)[1]
        top = found[0]
        own = by_mass * part_mass + by_moment * (part_moment + part_mass)
        if bool(to_maximum.any()):
            tied = (maximum == top).to(own.dtype)
            own = own + tied * to_maximum / ctx.ranks.total(tied).clamp(min=1.0)
        gap = torch.where(torch.isfinite(maximum) & torch.isfinite(top), maximum - top, 0.0)
        lost = (maximum == -torch.inf) | ((top == torch.inf) & (maximum != torch.inf))
        factor = torch.where(lost, 0.0, torch.exp(gap))
        by_part = own, factor * (by_mass + gap * by_moment), factor * by_moment
        return None, *by_part, None, *no_gradients(ctx)
