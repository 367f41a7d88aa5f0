"""What a block of keys adds to the rows of this rank, by the two primitives of an implementation.

Everything is relative to the largest logit of the whole row once that is known, so that the parts
of blocks and ranks add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sharpmax._attention import Problem
from sharpmax._statistics import RowStatistics, merge_all
from sharpmax.distributed._layout import Piece


@dataclass(frozen=True)
class Blocks:
    """The rows of this rank, to be measured and weighed against any keys.

    Attributes:
        problem: the settings of the whole attention. `offset` is that of the whole sequence. Its
            tensors are not read.
        implementation: a module of `sharpmax._attention.impl`.
        queries: the pieces of the sequence that the rows are.
        local_mask: whether the columns of the mask are the keys of a block; otherwise they are all
            keys, in the order of the sequence.
    """

    problem: Problem
    implementation: Any
    queries: tuple[Piece, ...]
    local_mask: bool

    def measure(
        self, query: Tensor, key: Tensor, mask: Tensor | None, keys: Sequence[Piece]
    ) -> RowStatistics:
        """Return the statistics of the rows, of these keys alone."""
        parts = []
        for rows in self.queries:
            found = [
                self.implementation.measure(problem)
                for problem in self._problems(query, key, None, mask, rows, keys)
            ]
            parts.append(merge_all(found) if found else self._nothing(query, rows))
        return RowStatistics(*(torch.cat(entries, 2) for entries in zip(*parts, strict=True)))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        keys: Sequence[Piece],
        beta: Tensor,
        maximum: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of w v and of w over these keys, where w = exp(beta (e - maximum))."""
        dtype = self.problem.statistics_dtype
        outputs, masses = [], []
        for rows in self.queries:
            shape = (*query.shape[:2], rows.stop - rows.start)
            output = query.new_zeros(*shape, value.shape[3], dtype=dtype)
            mass = query.new_zeros(shape, dtype=dtype)
            here = beta[:, :, rows.here], maximum[:, :, rows.here]
            for problem in self._problems(query, key, value, mask, rows, keys):
                found, weight = self._weighed(problem, *here)
                # A block without weight may hold anything.
                found = torch.where(weight[..., None] == 0.0, 0.0, found.to(dtype))
                output, mass = output + weight[..., None] * found, mass + weight
            outputs.append(output)
            masses.append(mass)
        return torch.cat(outputs, 2), torch.cat(masses, 2)

    def temper(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        keys: Sequence[Piece],
        beta: Tensor,
        maximum: Tensor,
    ) -> Tensor:
        """Return the sums of w, w beta d and w d d over these keys, where d = e - maximum.

        They are in double precision, [3, batch, heads, queries]. The third has no gradient.
        """
        value = key.new_zeros(1, 1, 1, 1).expand(*key.shape[:3], 1)
        parts = []
        for rows in self.queries:
            shape = (3, *query.shape[:2], rows.stop - rows.start)
            sums = query.new_zeros(shape, dtype=torch.float64)
            here = beta[:, :, rows.here], maximum[:, :, rows.here]
            for problem in self._problems(query, key, value, mask, rows, keys):
                entropy, variance = self.implementation.temper(problem, here[0])
                _, logarithm = self.implementation.attend(problem, here[0], maximum=here[1])
                weight = torch.exp(logarithm)
                # Of the block alone, log of the mass - entropy = beta E[d].
                shift = torch.where(weight == 0.0, 0.0, logarithm - entropy).double()
                square = variance.double() + (shift / here[0]).square()
                square = torch.where(weight == 0.0, 0.0, square).detach()
                sums = sums + weight * torch.stack([torch.ones_like(shift), shift, square])
            parts.append(sums)
        return torch.cat(parts, 3)

    def _weighed(self, problem: Problem, beta: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        output, logarithm = self.implementation.attend(problem, beta, maximum=maximum)
        return output, torch.exp(logarithm)

    def _problems(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        mask: Tensor | None,
        rows: Piece,
        keys: Sequence[Piece],
    ) -> Iterator[Problem]:
        """Yield one problem for each piece of the keys that a row can see."""
        for piece in keys:
            if not self._sees(rows, piece):
                continue
            columns = piece.here if self.local_mask else slice(piece.start, piece.stop)
            yield replace(
                self.problem,
                query=query[:, :, rows.here],
                key=key[:, :, piece.here],
                value=None if value is None else value[:, :, piece.here],
                attn_mask=None if mask is None else mask[:, :, rows.here, columns],
                offset=self.problem.offset + rows.start - piece.start,
            )

    def _sees(self, rows: Piece, keys: Piece) -> bool:
        """Whether the window lets any of the rows see any of the keys."""
        problem = self.problem
        if rows.start == rows.stop or keys.start == keys.stop:
            return False
        first, last = rows.start + problem.offset, rows.stop - 1 + problem.offset
        reaches = problem.left < 0 or keys.stop - 1 >= first - problem.left
        return reaches and (problem.right < 0 or keys.start <= last + problem.right)

    def _nothing(self, query: Tensor, rows: Piece) -> RowStatistics:
        shape = (*query.shape[:2], rows.stop - rows.start)
        zero = query.new_zeros(shape, dtype=self.problem.statistics_dtype)
        return RowStatistics(zero - torch.inf, zero, zero, zero.long())
