"""A head in double precision: one curve of hidden layers over priorities per class.

The hidden layer of an item depends only on its class and, smoothly, on its priority. Ten curves
therefore describe a head, and piecewise polynomials evaluate them in double precision. That makes a
million items affordable, whose largest priorities single precision cannot distinguish.
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
    """Evaluate a head in double precision by piecewise polynomials.

    Args:
        heads: A stack of one, whose logits are plain products.
        class_blind: Replace the logit of an item by the mean over all classes at its priority. That
            removes what a class adds to the logit, without labels; it assumes that you know which
            feature of an item must not count.
        intervals: Number of pieces of [0, 1].
        degree: Degree of the polynomials. With 128 pieces and degree 7 only rounding errors remain.
    """

    def __init__(
        self, heads: Heads, *, class_blind: bool = False, intervals: int = 128, degree: int = 7
    ) -> None:
        self._heads = copy.deepcopy(heads).double()
        self._intervals = intervals
        # In each piece, hidden layers at the Chebyshev points, and the polynomials through them.
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

        Items so far below the largest logit that even their sum would add nothing in double
        precision are left out.
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
        """Return the polynomials of the logit in each cell, for each set: [sets, powers, cells]."""
        probes = self._heads.probes(torch.from_numpy(queries)[None])[0, :, 0]
        return torch.einsum("cpw,sw->spc", self._seen, probes)

    def _cells(
        self, priorities: NDArray[np.float64], classes: NDArray[np.uint8]
    ) -> tuple[Tensor, Tensor]:
        """Return class and piece of each item as one number, and its place in it, -1 to 1."""
        scaled = torch.from_numpy(priorities) * self._intervals
        piece = scaled.long().clamp_(max=self._intervals - 1)
        return torch.from_numpy(classes).long() * self._intervals + piece, 2 * (scaled - piece) - 1

    def _matter(self, table: Tensor, cells: Tensor) -> Tensor:
        """Return the indices of the items whose logits are not far below the largest."""
        present = torch.bincount(cells, minlength=table.shape[1]) > 0
        # |sum of c_p t^p| is at most the sum of |c_p| for t in [-1, 1].
        reach = table[1:].abs().sum(0)
        lowest_top = (table[0] - reach)[present].max()
        near = table[0] + reach > lowest_top - NOTHING
        return near[cells].nonzero().squeeze(-1)

    def _mixture(self, weights: Tensor, cells: Tensor, places: Tensor) -> Tensor:
        """Return the weighted sum of hidden items, from the moments of the weights in each cell."""
        count, powers, _ = self._curves.shape
        moments = torch.empty(powers, count, dtype=weights.dtype)
        for power in range(powers):
            moments[power] = torch.bincount(cells, weights, minlength=count)
            weights = weights * places
        some = moments.any(0).nonzero().squeeze(-1)
        return torch.einsum("pc,cpw->w", moments[:, some], self._curves[some])


def _polynomials(table: Tensor, cells: Tensor, places: Tensor) -> Tensor:
    """Apply the Horner scheme with the coefficients [powers, cells] of the cell of each item."""
    value = table[-1][cells]
    for coefficients in table[:-1].flip(0):
        value.mul_(places).add_(coefficients[cells])
    return value
