"""The ways to make weights of logits that are compared, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from sharpmax import normalisers, policies
from sharpmax.lab.max_retrieval.recipe import Recipe
from sharpmax.normalisers import Normaliser

__all__ = ["TRAINED", "normaliser"]

_Make = Callable[[int, Recipe, list[torch.Generator]], Normaliser]

TRAINED: Mapping[str, _Make] = MappingProxyType(
    {
        "softmax": lambda heads, recipe, _: normalisers.Softmax(),
        "paper": lambda heads, recipe, _: normalisers.Softmax(policies.Paper(warn=False)),
        "ssmax": lambda heads, recipe, _: normalisers.SSMax(heads, 1 / math.log(recipe.largest)),
        "log-n": lambda heads, recipe, _: normalisers.LogN(recipe.largest),
        "asentmax": lambda heads, recipe, _: normalisers.ASEntmax(heads, recipe.width),
        "entmax": lambda heads, recipe, _: normalisers.Entmax(1.5),
        "sparsemax": lambda heads, recipe, _: normalisers.Sparsemax(),
        "sigmoid": lambda heads, recipe, _: normalisers.Sigmoid(heads),
        "linear": lambda heads, recipe, _: normalisers.Linear(heads),
        "linear-normalised": lambda heads, recipe, _: normalisers.Linear(normalise=True),
        "stick-breaking": lambda heads, recipe, _: normalisers.StickBreaking(),
        "selective": lambda heads, recipe, generators: normalisers.Selective(
            heads, recipe.width, generator=generators
        ),
        "differential": lambda heads, recipe, _: normalisers.Differential(heads),
        "top-k": lambda heads, recipe, _: normalisers.TopK(4),
        "local": lambda heads, recipe, _: normalisers.Local(recipe.largest),
        "off-by-one": lambda heads, recipe, _: normalisers.OffByOne(),
        "hard": lambda heads, recipe, _: normalisers.Hard(straight_through=True),
        "discontinuous": lambda heads, recipe, generators: normalisers.Discontinuous(
            heads, recipe.width, generator=generators
        ),
    }
)
"""What heads are trained with, by name: each is made for a number of heads and a recipe."""


def normaliser(recipe: Recipe, seeds: Sequence[int]) -> Normaliser:
    """What a recipe trains with, for a stack of heads.

    Args:
        recipe: How the heads are trained.
        seeds: One for each head; where the first weights are random, they depend on it alone.

    Raises:
        ValueError: There is no normaliser of that name.
    """
    if recipe.normaliser not in TRAINED:
        raise ValueError(f"normaliser: expected one of {', '.join(TRAINED)}, got {recipe.normaliser!r}")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return TRAINED[recipe.normaliser](len(seeds), recipe, generators)
