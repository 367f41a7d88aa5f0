"""What heads are trained with, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from experiments.max_retrieval.recipe import Recipe
from sharpmax import policies
from sharpmax.normalisers import (
    ASEntmax,
    Differential,
    Discontinuous,
    Entmax,
    Hard,
    Linear,
    Local,
    LogN,
    Normaliser,
    OffByOne,
    Selective,
    Sigmoid,
    Softmax,
    Sparsemax,
    SSMax,
    StickBreaking,
    TopK,
)

__all__ = ["normaliser", "normaliser_names"]


def normaliser(recipe: Recipe, seeds: Sequence[int]) -> Normaliser:
    """What a recipe trains with, for a stack of heads.

    Args:
        recipe: How the heads are trained.
        seeds: One for each head; where the first weights are random, they depend on it alone.

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
    """Every name that `normaliser` knows, softmax first."""
    return list(_makers(Recipe(), ()))


def _makers(recipe: Recipe, seeds: Sequence[int]) -> dict[str, Callable[[], Normaliser]]:
    heads, width, length = len(seeds), recipe.width, recipe.largest
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return {
        "softmax": Softmax,
        "paper": lambda: Softmax(policies.Paper(warn=False)),
        "ssmax": lambda: SSMax(heads, 1 / math.log(length)),
        "log-n": lambda: LogN(length),
        "asentmax": lambda: ASEntmax(heads, width),
        "entmax": lambda: Entmax(1.5),
        "sparsemax": Sparsemax,
        "sigmoid": lambda: Sigmoid(heads),
        "linear": lambda: Linear(heads),
        "linear-normalised": lambda: Linear(normalise=True),
        "stick-breaking": StickBreaking,
        "selective": lambda: Selective(heads, width, generator=generators),
        "differential": lambda: Differential(heads),
        "top-k": lambda: TopK(4),
        "local": lambda: Local(length),
        "off-by-one": OffByOne,
        "hard": lambda: Hard(straight_through=True),
        "discontinuous": lambda: Discontinuous(heads, width, generator=generators),
    }
