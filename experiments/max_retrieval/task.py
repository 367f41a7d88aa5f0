"""Max retrieval: name the class of the item with the highest priority in a set.

An item has a priority, uniform on [0, 1), and one of ten classes. With the items comes a query, one
number without information. The answer is the class of the item with the highest priority: one item
out of n decides, so a head that disperses fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "NearTies", "Sets", "sample"]

CLASSES = 10


@dataclass(frozen=True)
class NearTies:
    """Sets whose priorities are close together, so that small differences matter.

    With probability `share`, the priorities of a set are uniform in a window whose width is
    log-uniform between `narrowest` and 1. The window is at the top end, [1 - width, 1), with
    probability `top`, and anywhere in [0, 1) otherwise.

    Attributes:
        share: Probability that a set has near ties.
        narrowest: Smallest width of a window.
        top: Probability that a window is at the top end.
    """

    share: float = 0.9
    narrowest: float = 1e-5
    top: float = 0.9

    def __post_init__(self) -> None:
        for name in ("share", "top"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected from 0 to 1, got {getattr(self, name)}")
        if not 0 < self.narrowest <= 1:
            raise ValueError(f"narrowest: expected above 0 and at most 1, got {self.narrowest}")

    def place(self, rng: np.random.Generator, uniform: NDArray[np.float64]) -> None:
        """Move uniform priorities into windows, in place.

        Args:
            rng: Random generator of the windows.
            uniform: Priorities on [0, 1), sets by items.
        """
        sets = (*uniform.shape[:-1], 1)
        width = self.narrowest ** rng.random(sets)
        bottom = (1 - width) * np.where(rng.random(sets) < self.top, 1, rng.random(sets))
        near = rng.random(sets) < self.share
        uniform *= np.where(near, width, 1)
        uniform += np.where(near, bottom, 0)


@dataclass(frozen=True)
class Sets:
    """Sets of items, each with a query and an answer.

    Attributes:
        priorities: Priority of each item on [0, 1), sets by items, in double precision: two of a
            million items are often closer than single precision can distinguish.
        classes: Class of each item, 0 to 9, sets by items.
        queries: One number on [0, 1) per set, without information.
    """

    priorities: NDArray[np.float64]
    classes: NDArray[np.uint8]
    queries: NDArray[np.float64]

    @property
    def largest(self) -> NDArray[np.intp]:
        """Index of the item with the highest priority, one number per set."""
        return np.asarray(self.priorities.argmax(-1))

    @property
    def targets(self) -> NDArray[np.uint8]:
        """Class of the item with the highest priority, one number per set."""
        return np.take_along_axis(self.classes, self.largest[..., None], -1)[..., 0]


def sample(
    rng: np.random.Generator, shape: int | tuple[int, ...], size: int, ties: NearTies | None = None
) -> Sets:
    """Draw sets.

    Args:
        rng: Random generator; the same state gives the same sets.
        shape: Number of sets, or the axes before that of the items.
        size: Items per set, at least 1.
        ties: Draw some of the sets with priorities close together; None draws all uniformly.

    Returns:
        The sets.

    Raises:
        ValueError: The size is below 1.

    Example:
        >>> sets = sample(np.random.default_rng(0), 2, size=16)
        >>> sets.priorities.shape, sets.targets.tolist()
        ((2, 16), [0, 1])
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1 item, got {size}")
    shape = (shape,) if isinstance(shape, int) else shape
    priorities = rng.random((*shape, size))
    if ties is not None:
        ties.place(rng, priorities)
    classes = rng.integers(CLASSES, size=(*shape, size), dtype=np.uint8)
    return Sets(priorities, classes, rng.random(shape))
