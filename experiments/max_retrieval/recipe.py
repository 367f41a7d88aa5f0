"""How a head is trained: every choice that its weights depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch

from experiments.max_retrieval.task import NearTies
from sharpmax import normalisers, policies
from sharpmax.normalisers import Normaliser

__all__ = ["Recipe", "normaliser", "normaliser_names"]


@dataclass(frozen=True)
class Recipe:
    """Describe a training; the defaults are the set-up of the paper.

    Attributes:
        normaliser: What turns logits into weights in training, one of `normaliser_names()`.
        steps: Number of batches.
        batch: Sets per batch.
        smallest: Smallest number of items in a set.
        largest: Largest number of items in a set; all sets of a batch have the same number.
        learning_rate: Learning rate of Adam.
        schedule: The learning rate stays constant, or falls to zero along half a cosine.
        weight_decay: Weight decay.
        decoupled: Apply the decay apart from the gradient, as AdamW does; False adds it to the
            gradient ("coupled").
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
        """Return plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the recipe that plain data describes."""
        ties = data["ties"]
        return cls(**{**data, "ties": None if ties is None else NearTies(**ties)})


def normaliser(recipe: Recipe, seeds: Sequence[int]) -> Normaliser:
    """Make the normaliser of a recipe, for a stack of heads.

    Args:
        recipe: How the heads are trained.
        seeds: One per head; random initial weights depend on it alone.

    Raises:
        ValueError: There is no normaliser of that name.
    """
    makers = _makers(recipe, seeds)
    if recipe.normaliser not in makers:
        raise ValueError(
            f"normaliser: expected one of {', '.join(makers)}, got {recipe.normaliser!r}"
        )
    return makers[recipe.normaliser]()


def normaliser_names() -> list[str]:
    """Return every name that `normaliser` knows, softmax first."""
    return list(_makers(Recipe(), ()))


def _makers(recipe: Recipe, seeds: Sequence[int]) -> dict[str, Callable[[], Normaliser]]:
    heads, width, length = len(seeds), recipe.width, recipe.largest
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    n = normalisers
    return {
        "softmax": n.Softmax,
        "paper": lambda: n.Softmax(policies.Paper(warn=False)),
        "ssmax": lambda: n.SSMax(heads, 1 / math.log(length)),
        "log-n": lambda: n.LogLength(length),
        "asentmax": lambda: n.ASEntmax(heads, width),
        "entmax": lambda: n.Entmax(1.5),
        "sparsemax": n.Sparsemax,
        "sigmoid": lambda: n.Sigmoid(heads),
        "linear": lambda: n.Linear(heads),
        "linear-normalised": lambda: n.Linear(normalise=True),
        "stick-breaking": n.StickBreaking,
        "selective": lambda: n.Selective(heads, width, generator=generators),
        "differential": lambda: n.Differential(heads),
        "top-k": lambda: n.TopK(4),
        "local": lambda: n.Local(length),
        "off-by-one": n.OffByOne,
        "hard": lambda: n.Hard(straight_through=True),
        "discontinuous": lambda: n.Discontinuous(heads, width, generator=generators),
    }
