"""Explain the errors of a head: its logit is a slope times the priority plus a class offset.

Near the top, where errors occur, the logit of an item of class c is close to
slope * (priority + offset_c). Hard attention takes the item with the largest sum, and fails if two
classes differ in their offsets by more than the two highest priorities differ: by about 1 / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.profile import Profile
from experiments.max_retrieval.task import CLASSES, Sets
from sharpmax._files import read_sealed

__all__ = ["KIND", "Anatomy", "dissect", "load_anatomy"]

KIND = "max-retrieval anatomy, format 1"

# Lowest priority of the fit; number of priorities and queries.
_TOP = 0.99
_PLACES, _QUERIES = 33, 16
# Only the highest priorities of a set can win.
_BEST = 256


@dataclass(frozen=True)
class Anatomy:
    """Slope and offsets of the logits of a head.

    Attributes:
        slope: Derivative of the logit by the priority, near the top.
        offsets: Contribution of each class, in units of priority; their mean is 0.
    """

    slope: float
    offsets: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """Standard deviation of the offsets, in units of priority."""
        return float(np.std(self.offsets))

    def predicted_accuracy(self, n: int, sets: int = 20_000, seed: int = 0) -> float:
        """Predict the accuracy of hard attention if the offsets are the only error.

        Args:
            n: Items in a set.
            sets: Number of sets to draw.
            seed: Seed of the drawing.

        Example:
            >>> Anatomy(100.0, (0.0,) * 10).predicted_accuracy(1000)
            1.0
        """
        rng = np.random.default_rng(seed)
        best = _highest(rng, sets, n)
        classes = rng.integers(CLASSES, size=best.shape)
        chosen = (best + np.asarray(self.offsets)[classes]).argmax(1)
        right = np.take_along_axis(classes, chosen[:, None], 1)[:, 0] == classes[:, 0]
        return float(right.mean())


def dissect(heads: Heads) -> Anatomy:
    """Fit slope and offsets to the logits of a head near the top, over several queries.

    Args:
        heads: A stack of one.
    """
    places = np.linspace(_TOP, 1 - 1e-9, _PLACES)
    queries = (np.arange(_QUERIES) + 0.5) / _QUERIES
    sets = Sets(
        np.broadcast_to(np.tile(places, CLASSES), (_QUERIES, CLASSES * _PLACES)).copy(),
        np.broadcast_to(
            np.repeat(np.arange(CLASSES, dtype=np.uint8), _PLACES), (_QUERIES, CLASSES * _PLACES)
        ).copy(),
        queries,
    )
    logits = Profile(heads).logits(sets).reshape(_QUERIES, CLASSES, _PLACES)
    # A line through the logits of each class: its slope, and its height at priority 1.
    powers = torch.from_numpy(np.vander(places - 1, 2))
    lines = torch.linalg.lstsq(powers, logits.reshape(-1, _PLACES).mT).solution
    slopes, heights = lines.reshape(2, _QUERIES, CLASSES)
    # A query may add the same to all classes: that is not an offset.
    offsets = ((heights - heights.mean(-1, keepdim=True)) / slopes.mean()).mean(0)
    return Anatomy(float(slopes.mean()), tuple(offsets.tolist()))


def load_anatomy(path: str | Path) -> dict[str, Any]:
    """Read what `Study.dissect` wrote.

    Raises:
        DamagedFileError: The file is truncated, was edited, or is another kind of file.
    """
    return read_sealed(path, KIND)


def _highest(rng: np.random.Generator, sets: int, n: int) -> NDArray[np.float64]:
    """Draw the highest of n uniform priorities in descending order, without drawing all."""
    count = min(n, _BEST)
    # The largest of m uniform numbers is distributed like u^(1/m), and the rest lie below it.
    steps = rng.random((sets, count)) ** (1 / (n - np.arange(count)))
    return np.asarray(np.cumprod(steps, axis=1), dtype=np.float64)
