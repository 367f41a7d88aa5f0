"""The arms of the experiment: models to train, and what to test them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from experiments.clrs_text.inference import AT_INFERENCE, Method
from experiments.clrs_text.recipe import Attention, Recipe

__all__ = ["ATTENTIONS", "LENGTHS", "SHORT", "Arm", "arms_of", "small_recipe"]

LENGTHS: Mapping[str, tuple[int, int]] = {
    "minimum": (4, 16),
    "binary_search": (4, 16),
    "bubble_sort": (4, 7),
    "heapsort": (4, 7),
    "insertion_sort": (4, 7),
    "quicksort": (4, 7),
    "kmp_matcher": (4, 8),
    "naive_string_matcher": (4, 8),
}
"""What is trained if nothing else is asked for, with its sizes: what a small model learns in a
quarter of an hour on one core. Sizes go up to 16, to 8 where a text has two lists, and to 7 where
an answer repeats every number."""

SHORT = (4, 6)
"""Sizes of the others, many of which have a matrix in their text."""

ATTENTIONS: tuple[str, ...] = tuple(dict.fromkeys((*get_args(Attention), *AT_INFERENCE)))
"""What may be asked for: trained in, or at inference alone with a model trained with softmax."""


@dataclass(frozen=True)
class Arm:
    """Models that are trained alike, one for each seed.

    Attributes:
        recipe: How they are trained.
        methods: What they are tested with. Those trained with plain softmax are tested with
            methods at inference; all others as they were trained.
    """

    recipe: Recipe
    methods: tuple[Method, ...] = ()

    @property
    def name(self) -> str:
        """Of the arm, and of its folder."""
        tokens = "own-tokens" if self.recipe.model else self.recipe.tokenizer
        return f"{tokens}-{self.recipe.attention}"


def arms_of(recipe: Recipe, attentions: Sequence[str] = ATTENTIONS) -> list[Arm]:
    """The arms that attentions ask for; plain softmax, which all are compared with, comes first.

    Args:
        recipe: What they have in common.
        attentions: Some of `ATTENTIONS`; "softmax" stands for plain softmax with every method at
            inference.

    Returns:
        The arms: one for each training.

    Raises:
        ValueError: There is no such attention.

    Example:
        >>> from experiments.clrs_text.recipe import Recipe
        >>> [(arm.name, arm.methods) for arm in arms_of(Recipe(), ["exponential", "ssmax"])]
        [('numbers-softmax', ('softmax', 'exponential')), ('numbers-ssmax', ())]
    """
    for name in attentions:
        if name not in ATTENTIONS:
            raise ValueError(f"attention: expected some of {', '.join(ATTENTIONS)}, got {name!r}")
    methods = tuple(
        name
        for name in AT_INFERENCE
        if name == "softmax" or "softmax" in attentions or name in attentions
    )
    trained: list[Attention] = ["paper", "ssmax"]
    return [
        Arm(replace(recipe, attention="softmax"), methods),
        *(Arm(replace(recipe, attention=name)) for name in trained if name in attentions),
    ]


def small_recipe(
    lengths: Mapping[str, tuple[int, int]],
    *,
    tokenizer: str = "numbers",
    positions: str = "places",
    model: str | None = None,
    rank: int = 8,
    quick: bool = False,
) -> Recipe:
    """The recipe of all arms: that of the small decoder, or of a pretrained model.

    Args:
        lengths: The algorithms, and for each the smallest and the largest size in training.
        tokenizer: Of the small decoder.
        positions: Of the small decoder.
        model: Name or folder of a pretrained model, or None.
        rank: Of its adapters; 0 trains all of its weights.
        quick: Make all so small that a step takes no time.

    Raises:
        ValueError: There is no such tokenizer or kind of positions.
    """
    # Names are checked by the recipe.
    recipe = Recipe(lengths=lengths, tokenizer=tokenizer, positions=positions)  # type: ignore[arg-type]
    if model is not None:
        recipe = replace(
            recipe,
            positions="rotary",
            model=model,
            rank=rank,
            optimiser="adamw",
            learning_rate=2e-4 if rank else 2e-5,
            batch=8,
        )
    if quick:
        recipe = replace(recipe, layers=2, heads=2, width=16, hidden=16, batch=4, warmup=1)
    return recipe
