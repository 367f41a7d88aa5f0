"""How a head is trained: every choice that its weights depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from experiments.max_retrieval.task import NearTies

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """The choices of a training; the defaults are the paper's set-up.

    Attributes:
        normaliser: Name of what makes weights of logits in training (`lab.max_retrieval.methods`).
        steps: Number of batches.
        batch: Sets in a batch.
        smallest: Smallest number of items in a set.
        largest: Largest number of items in a set; all sets of a batch have the same.
        learning_rate: Of Adam.
        schedule: The learning rate stays constant, or falls to zero along half a cosine.
        weight_decay: How much weights shrink.
        decoupled: Shrink the weights apart from the gradient, as AdamW does; False adds the decay
            to the gradient ("coupled").
        averaging: Decay of the exponential moving average of the weights.
        ties: Draw some of the sets with priorities close together.
        width: Width of all layers.
    """

    normaliser: str = "softmax"
    steps: int = 40_000
    batch: int = 128
    smallest: int = 5
    largest: int = 16
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 1e-3
    decoupled: bool = True
    averaging: float = 0.999
    ties: NearTies | None = None
    width: int = 128

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: expected at least 1, got {self.steps}")
        if not 1 <= self.smallest <= self.largest:
            raise ValueError(
                f"smallest: expected from 1 to largest = {self.largest}, got {self.smallest}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The recipe that plain data describes."""
        ties = data["ties"]
        return cls(**{**data, "ties": None if ties is None else NearTies(**ties)})
