"""The settings of a run: its seeds, and the questions that all models are tested on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings that all arms of a run share.

    Attributes:
        seeds: Seeds of the trainings.
        lengths: The smallest and the largest training size, by algorithm.
        each: Test questions per algorithm and size beyond training; four times as many at training
            sizes.
        times: The sizes beyond training, as multiples of the largest training size.
        fit_steps: Steps of the calibration of heads.
        inside: Number of test sizes within training, at most.
    """

    seeds: tuple[int, ...]
    lengths: Mapping[str, tuple[int, int]]
    each: int = 64
    times: tuple[float, ...] = (1.5, 2, 3, 4)
    fit_steps: int = 40
    inside: int = 4

    def sizes(self, algorithm: str) -> list[int]:
        """Return the test sizes of an algorithm: some within training, and those beyond."""
        smallest, largest = self.lengths[algorithm]
        parts = range(1, self.inside + 1)
        inside = {max(smallest, round(largest * part / self.inside)) for part in parts}
        return sorted(inside | {math.ceil(largest * times) for times in self.times})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, equal to what JSON gives back."""
        lengths = {name: list(both) for name, both in self.lengths.items()}
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "lengths": lengths,
            "times": list(self.times),
        }
