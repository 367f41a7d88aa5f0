"""A head as what it is on this task: a curve of hidden layers over priorities for each class.

What the items' MLP makes of an item depends on its priority and its class alone, and smoothly on
the priority. So ten curves, one a class, say everything about a head, and polynomials say it in
double precision at a fraction of the cost of the MLP: that makes a million items affordable, whose
largest priorities are closer together than single precision can tell.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.max_retrieval.evaluation import NOTHING, Weigh
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.task import CLASSES, Sets

__all__ = ["Profile"]


class Profile:
    """A head in double precision, by piecewise polynomials.

    Args:
        heads: A stack of one, whose logits are one map of products.
        class_blind: Take for the logit of an item the mean over all classes that an item of its
            priority could have. That removes what a class adds to the logit, without labels; it
            assumes that one knows which feature of an item must not count.
        intervals: How many pieces [0, 1] is cut into.
        degree: Of the polynomials. With 128 pieces and degree 7 the error is that of rounding.
    """

    def __init__(
        self, heads: Heads, *, class_blind: bool = False, intervals: int = 128, degree: int = 7
    ) -> None:
        self._heads = copy.deepcopy(heads).double()
        self._intervals = intervals
        # In each piece, hidden layers at Chebyshev's points, and the polynomials through them.
        points = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
        starts = np.arange(intervals)[:, None]
        priorities = torch.from_numpy((starts + (points + 1) / 2) / intervals).flatten()
        classes = torch.arange(CLASSES)[:, None].expand(-1, len(priorities))
        with torch.inference_mode():
            hidden = self._heads.hidden(priorities.expand(1, CLASSES, -1), classes[None])[0]
        at_points = hidden.reshape(CLASSES * intervals, degree + 1, heads.width)
        through = torch.from_numpy(np.linalg.inv(np.vander(points, increasing=True)))
        self._curves = through @ at_points  # [cells, powers, width]
        self._seen = self._curves
        if class_blind:
            curves = self._curves.unflatten(0, (CLASSES, intervals))
            self._seen = curves.mean(0, keepdim=True).expand_as(curves).flatten(0, 1)

    def logits(self, sets: Sets) -> Tensor:
        """Logits of the items, [sets, items]."""
        with torch.inference_mode():
            return torch.stack(
                [
                    _polynomials(table, *self._cells(priorities, classes))
                    for table, priorities, classes in zip(
                        self._tables(sets.queries), sets.priorities, sets.classes, strict=True
                    )
                ]
            )

    def scores(self, ways: Sequence[Weigh], sets: Sets) -> Tensor:
        """Scores of the classes for each way to make weights: [sets, ways, classes].

        A way sees the logits of the items that can matter: items so far below the largest logit
        that in double precision even all of them together would add nothing are left out.
        """
        mixtures = []
        with torch.inference_mode():
            for table, priorities, classes in zip(
                self._tables(sets.queries), sets.priorities, sets.classes, strict=True
            ):
                cells, places = self._cells(priorities, classes)
                matter = self._matter(table, cells)
                cells, places = cells[matter], places[matter]
                logits = _polynomials(table, cells, places)
                mixtures += [
                    self._mixture(weigh(logits[None], len(priorities))[0], cells, places)
                    for weigh in ways
                ]
            scores = self._heads.scores(torch.stack(mixtures)[None])[0]
            return scores.reshape(len(sets.queries), len(ways), CLASSES)

    def _tables(self, queries: NDArray[np.float64]) -> Tensor:
        """Polynomials of the logit in each cell, for each set: [sets, powers, cells]."""
        probes = self._heads.probes(torch.from_numpy(queries)[None])[0, :, 0]
        return torch.einsum("cpw,sw->spc", self._seen, probes)

    def _cells(
        self, priorities: NDArray[np.float64], classes: NDArray[np.uint8]
    ) -> tuple[Tensor, Tensor]:
        """For each item its class and piece, as one number, and its place in the piece, -1 to 1."""
        scaled = torch.from_numpy(priorities) * self._intervals
        piece = scaled.long().clamp_(max=self._intervals - 1)
        return torch.from_numpy(classes).long() * self._intervals + piece, 2 * (scaled - piece) - 1

    def _matter(self, table: Tensor, cells: Tensor) -> Tensor:
        """Indices of the items whose logits are not far below the largest."""
        present = torch.bincount(cells, minlength=table.shape[1]) > 0
        # |sum of c_p t^p| is at most the sum of |c_p| for t in [-1, 1].
        reach = table[1:].abs().sum(0)
        lowest_top = (table[0] - reach)[present].max()
        near = table[0] + reach > lowest_top - NOTHING
        return near[cells].nonzero().squeeze(-1)

    def _mixture(self, weights: Tensor, cells: Tensor, places: Tensor) -> Tensor:
        """Hidden items, weighted and added, from the moments of the weights in each cell."""
        count, powers, _ = self._curves.shape
        moments = torch.empty(powers, count, dtype=weights.dtype)
        for power in range(powers):
            moments[power] = torch.bincount(cells, weights, minlength=count)
            weights = weights * places
        some = moments.any(0).nonzero().squeeze(-1)
        return torch.einsum("pc,cpw->w", moments[:, some], self._curves[some])


def _polynomials(table: Tensor, cells: Tensor, places: Tensor) -> Tensor:
    """Horner's scheme, with the coefficients [powers, cells] of the cell of each item."""
    value = table[-1][cells]
    for coefficients in table[:-1].flip(0):
        value.mul_(places).add_(coefficients[cells])
    return value
