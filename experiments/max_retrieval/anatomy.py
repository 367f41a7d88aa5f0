"""Why a head errs: its logit is a slope times the priority, plus something that its class adds.

Near the top, where errors are made, the logit of an item of class c is close to
slope * (priority + offset_c). Hard attention then takes the item with the largest sum, and is wrong
wherever two classes differ in offset by more than the two best priorities do: by about 1 / n.
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

# The part of the priorities that is looked at, and the queries that are asked.
_TOP = 0.99
_PLACES, _QUERIES = 33, 16
# The highest priorities of a set, which alone can win.
_BEST = 256


@dataclass(frozen=True)
class Anatomy:
    """What the logits of a head are made of.

    Attributes:
        slope: Logit by priority, near the top.
        offsets: What each class adds, in units of priority; their mean is 0.
    """

    slope: float
    offsets: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """Standard deviation of the offsets, in units of priority."""
        return float(np.std(self.offsets))

    def predicted_accuracy(self, n: int, sets: int = 20_000, seed: int = 0) -> float:
        """How often hard attention finds the right class, if offsets were all that is wrong.

        Args:
            n: Items in a set.
            sets: How many sets are drawn.
            seed: Of the drawing.

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
    # Another query may add the same to all classes: that is no offset.
    offsets = ((heights - heights.mean(-1, keepdim=True)) / slopes.mean()).mean(0)
    return Anatomy(float(slopes.mean()), tuple(offsets.tolist()))


def load_anatomy(path: str | Path) -> dict[str, Any]:
    """Read what `Study.dissect` wrote.

    Raises:
        DamagedFileError: The file is cut off, was edited, or is none of ours.
    """
    return read_sealed(path, KIND)


def _highest(rng: np.random.Generator, sets: int, n: int) -> NDArray[np.float64]:
    """The highest of n uniform priorities, from high to low, without drawing all of them."""
    count = min(n, _BEST)
    # The largest of m uniform numbers is distributed like u^(1/m), and the rest lie below it.
    steps = rng.random((sets, count)) ** (1 / (n - np.arange(count)))
    return np.asarray(np.cumprod(steps, axis=1), dtype=np.float64)
