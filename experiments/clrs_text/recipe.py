"""Recipes of trainings, and the arms that the experiment compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

from experiments.clrs_text.places import PLACES
from experiments.clrs_text.task import SORTS

__all__ = [
    "ATTENTIONS",
    "AT_INFERENCE",
    "LEARNT",
    "LENGTHS",
    "SHORT",
    "Arm",
    "Attention",
    "Method",
    "Positions",
    "Recipe",
    "TokenizerName",
    "arms_of",
    "learnt_recipe",
    "small_recipe",
]

TokenizerName = Literal["numbers", "characters"]
"""One token per number, or one token per character."""

Attention = Literal["softmax", "paper", "ssmax", "exponential"]
"""The attention that all heads are trained with."""

Positions = Literal["places", "shifted", "none", "randomised", "rotary"]
"""The positional information that the model receives, see `Recipe`."""

Optimiser = Literal["muon", "adamw"]
Products = Literal["float32", "bfloat16"]

Method = Literal["softmax", "paper", "exponential", "by-row", "calibrated"]
"""The attention at inference, for a model that was trained with plain softmax."""

AT_INFERENCE: tuple[Method, ...] = get_args(Method)
"""All methods at inference, in the order of the tables."""

_TRAINED: tuple[Attention, ...] = ("paper", "ssmax")
_TUNED: tuple[Attention, ...] = ("softmax", "paper", "exponential")

ATTENTIONS: tuple[str, ...] = (
    *dict.fromkeys(("softmax", *_TRAINED, *AT_INFERENCE)),
    *(f"tuned-{name}" for name in _TUNED),
)
"""The values of `--attention`: trained with, applied at inference to a softmax model, or fine-tuned
with, from a softmax model."""

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
"""The eight default algorithms with their training sizes.

A small model learns them on one core. Sizes go up to 16, to 8 where the question has two lists, and
to 7 where the answer repeats every number."""

LEARNT: Mapping[str, tuple[int, int]] = dict.fromkeys(("minimum", "binary_search", *SORTS), (4, 16))
"""The algorithms that `learnt_recipe` learns at every training size."""

SHORT = (4, 6)
"""Training sizes of the other algorithms, many of which have a matrix in their question."""


# Tuned arms train for one step in this many.
_TUNING = 10


@dataclass(frozen=True)
class Recipe:
    """The choices that the weights of a training depend on.

    Attributes:
        lengths: The smallest and the largest training size, by algorithm.
        tokenizer: How text becomes tokens.
        attention: Plain softmax, the paper's adaptive temperature, SSMax with one learned scale
            per head, or the exponential law with one learned reference per head.
        tuned: Whether training starts from the final weights of plain softmax with the same seed,
            as the paper starts from a trained Gemma. The exponential law needs it: its references
            start at the entropies of that model.
        positions: "places" adds to the embedding of a number a fixed vector for its index in its
            list and its row in a matrix (abacus embeddings, McLeish et al. 2024), in questions and
            answers; other tokens receive none, and there are no rotations. The vector of an index
            is the embedding of that integer, so the model can answer with an index by copying it
            at any size. Numbers to sort receive none. "shifted" also begins every list at a
            random index in training, and moves an index in the answer along, so that every index
            of a test occurs in training; and it marks the numbers of a sorted answer. "rotary" uses
            Llama's positions.
            "randomised" draws a sorted sample of positions per example from a range as long as the
            longest test (Ruoss et al. 2023). "none" relies on causality alone (Kazemnejad et al.
            2023).
        through_temperature: Whether gradients pass through the paper's temperature; otherwise it
            is treated as a constant.
        places: Number of places; two more than the largest index, and one for no place.
        ties: Share of the examples whose numbers are close together or equal, for the algorithms
            of `experiments.clrs_text.task.WITH_TIES`.
        steps: Number of batches.
        batch: Examples per batch, over all algorithms and sizes.
        curriculum: Share of the steps over which the largest size grows to its full value; 0 uses
            all sizes from the start.
        optimiser: "muon" updates the matrices of layers with Muon and the rest with
            AdamW; "adamw" updates everything with AdamW.
        learning_rate: The peak. It rises over `warmup` steps and falls to a twentieth along half a
            cosine.
        warmup: Steps until the peak.
        weight_decay: Decoupled decay of matrices.
        averaging: Decay of the exponential moving average of the weights, which is tested instead
            of the last weights; 0 tests the last.
        layers: Layers of the model.
        heads: Heads per layer.
        width: Width of the residual stream.
        head_width: Width of the queries, keys and values of a head; None divides `width`.
        hidden: Width of the feed-forward layers.
        values: Whether embeddings of numbers or digits start as features of their values, so that
            the model need not learn their order.
        waves: Number of waves that represent a decimal.
        shortest: Period of the shortest of them; neighbours are 0.001 apart.
        noise: Standard deviation of what separates decimals beside their waves, whose own is 1.
        fixed: Whether embeddings stay at their initial values. Training would otherwise push away
            tokens that it never asks for, such as the indices of larger inputs.
        model: Name or folder of a pretrained model to train instead of the small one, with its own
            tokenizer and positions.
        rank: Rank of the LoRA adapters for `model`; 0 trains all weights.
        repeats: How many times as often as each sort every other algorithm is drawn.
        gain: Initial weight of the last normalisation, which scales the logits of answers.
        apart: Whether the waves of decimals have directions of their own, in which no other
            embedding has a component, so that neither noise nor indices blur the order of numbers.
        products: Type of the factors when the small decoder is trained; tests are in float32.
    """

    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tokenizer: TokenizerName = "numbers"
    attention: Attention = "softmax"
    tuned: bool = False
    positions: Positions = "places"
    through_temperature: bool = True
    places: int = 130
    ties: float = 0.0
    steps: int = 6000
    batch: int = 32
    curriculum: float = 0.0
    optimiser: Optimiser = "muon"
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.01
    averaging: float = 0.0
    layers: int = 4
    heads: int = 4
    width: int = 128
    head_width: int | None = None
    hidden: int = 256
    values: bool = True
    waves: int = 16
    shortest: float = 0.005
    noise: float = 0.5
    fixed: bool = True
    model: str | None = None
    rank: int = 8
    repeats: int = 1
    gain: float = 1.0
    apart: bool = False
    products: Products = "float32"

    def __post_init__(self) -> None:
        for name, kind in (
            ("tokenizer", TokenizerName),
            ("attention", Attention),
            ("positions", Positions),
            ("optimiser", Optimiser),
            ("products", Products),
        ):
            if (value := getattr(self, name)) not in get_args(kind):
                expected = ", ".join(get_args(kind))
                raise ValueError(f"{name}: expected one of {expected}, got {value!r}")
        for name in ("steps", "batch", "layers", "heads", "repeats"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        for name in ("ties", "averaging"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: expected from 0 to 1, got {value}")
        if self.attention == "exponential" and not self.tuned:
            raise ValueError("attention: expected a tuned recipe for 'exponential'")
        if not 3 < self.places <= PLACES:
            raise ValueError(f"places: expected from 4 to {PLACES}, got {self.places}")
        if self.model is not None and self.positions != "rotary":
            raise ValueError(
                f"positions: expected 'rotary' for a pretrained model, got {self.positions!r}"
            )
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: expected a multiple of twice the {self.heads} heads, got {self.width}"
            )
        if self.apart and 2 * self.waves > self.width:
            raise ValueError(
                f"waves: expected at most {self.width // 2}, half of the width, for directions of "
                f"their own, got {self.waves}"
            )
        for algorithm, (smallest, largest) in self.lengths.items():
            if not 1 <= smallest <= largest:
                raise ValueError(
                    f"lengths: expected the smallest and the largest size of {algorithm}, "
                    f"got {smallest} and {largest}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, equal to what JSON gives back."""
        return {
            **asdict(self),
            "lengths": {name: list(both) for name, both in self.lengths.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a recipe from plain data."""
        lengths = {name: (low, high) for name, (low, high) in data["lengths"].items()}
        return cls(**{**data, "lengths": lengths})


@dataclass(frozen=True)
class Arm:
    """Models with the same recipe, one per seed.

    Attributes:
        recipe: The recipe.
        methods: What the models are tested with: several methods at inference for plain softmax,
            otherwise the attention of the training.
        start: The recipe of the models that a tuned recipe starts from.
    """

    recipe: Recipe
    methods: tuple[str, ...]
    start: Recipe | None = None

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name in tables: "own tokens" for a pretrained model."""
        return "own tokens" if self.recipe.model else self.recipe.tokenizer

    @property
    def name(self) -> str:
        """The name of the arm and of its folder."""
        return f"{self.tokenizer.replace(' ', '-')}-{self.trained_with}"

    @property
    def trained_with(self) -> str:
        """The attention in training, marked if training started from plain softmax."""
        return f"tuned-{self.recipe.attention}" if self.recipe.tuned else self.recipe.attention


def arms_of(recipe: Recipe, attentions: Sequence[str] = ATTENTIONS) -> list[Arm]:
    """Make the arms for the given attentions; plain softmax, the baseline, always comes first.

    Args:
        recipe: The choices that all arms share.
        attentions: Some of `ATTENTIONS`; "softmax" stands for plain softmax with every method at
            inference. Tuned arms train for a tenth of the steps.

    Returns:
        One arm per kind of training.

    Raises:
        ValueError: An attention is unknown.

    Example:
        >>> [(arm.name, arm.methods) for arm in arms_of(Recipe(), ["exponential", "ssmax"])]
        [('numbers-softmax', ('softmax', 'exponential')), ('numbers-ssmax', ('ssmax',))]
    """
    for name in attentions:
        if name not in ATTENTIONS:
            raise ValueError(f"attention: expected some of {', '.join(ATTENTIONS)}, got {name!r}")
    at_inference = AT_INFERENCE if "softmax" in attentions else ("softmax", *attentions)
    plain = replace(recipe, attention="softmax")
    tuned = replace(recipe, tuned=True, steps=max(1, recipe.steps // _TUNING))
    return [
        Arm(plain, tuple(name for name in AT_INFERENCE if name in at_inference)),
        *(Arm(replace(recipe, attention=name), (name,)) for name in _TRAINED if name in attentions),
        *(
            Arm(replace(tuned, attention=name), (name,), plain)
            for name in _TUNED
            if f"tuned-{name}" in attentions
        ),
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
    """Make the recipe that all arms share, for the small decoder or for a pretrained model.

    Args:
        lengths: The smallest and the largest training size, by algorithm.
        tokenizer: Tokenizer of the small decoder.
        positions: Positions of the small decoder.
        model: Name or folder of a pretrained model, or None.
        rank: Rank of its adapters; 0 trains all weights.
        quick: Whether to make the small decoder tiny.

    Returns:
        The recipe.

    Raises:
        ValueError: The tokenizer or the positions are unknown.
    """
    # The recipe checks the names.
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


def learnt_recipe(lengths: Mapping[str, tuple[int, int]], *, quick: bool = False) -> Recipe:
    """Make the recipe of models that should answer all questions of their training sizes.

    Lists begin at any index that a test of 16 times the largest size has, a share of the inputs are
    near ties, and averaged weights are tested. `levers` measures what each part changes.

    Args:
        lengths: The smallest and the largest training size, by algorithm.
        quick: Whether to make the model tiny.

    Returns:
        The recipe.
    """
    recipe = small_recipe(lengths, positions="shifted", quick=quick)
    largest = max((high for _, high in lengths.values()), default=0)
    places = min(PLACES, 16 * largest + 3)
    return replace(
        recipe, places=places, ties=0.3, averaging=0.998, steps=20_000, products="bfloat16"
    )
