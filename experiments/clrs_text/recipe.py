"""How a language model is trained: every choice that its weights depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

__all__ = ["Attention", "Positions", "Recipe", "TokenizerName"]

TokenizerName = Literal["numbers", "characters"]
"""One token for each number, or for each character."""

Attention = Literal["softmax", "paper", "ssmax"]
"""What makes weights of logits in training, in all heads."""

Positions = Literal["places", "none", "randomised", "rotary"]
"""What the model is told of the places of tokens, see `Recipe`."""


@dataclass(frozen=True)
class Recipe:
    """The choices of a training.

    Attributes:
        lengths: The algorithms, and for each the smallest and the largest size in training.
        tokenizer: How text becomes tokens.
        attention: What makes weights of logits, in all heads: plain softmax; the paper's adaptive
            temperature; or SSMax, with one learned scale a head.
        positions: "places" adds to the embedding of a number that of its index in its list, and of
            its row in a matrix, as a fixed vector (abacus embeddings, McLeish et al. 2024), in
            questions and in answers alike; all else is told nothing, and there are no rotations.
            The vector of an index is the embedding of the integer: to answer with an index is to
            copy it, at any size. Sorting asks for no index, and numbers to sort are told none.
            "rotary" are the positions of Llama. "randomised" are a sorted random part of a range as
            long as the longest test, drawn anew for each example (Ruoss et al. 2023). "none" tells
            nothing at all (Kazemnejad et al. 2023): causality alone gives the order.
        through_temperature: Whether gradients pass through the paper's temperature; otherwise it
            counts as a constant.
        steps: Number of batches.
        batch: Examples in a batch, of all algorithms and sizes.
        curriculum: Share of the steps over which the largest size grows to its full value; 0 begins
            with all sizes.
        optimiser: "muon" makes orthogonal steps with the matrices of layers (torch.optim.Muon), and
            AdamW all others; "adamw" makes all.
        learning_rate: The largest; it rises over `warmup` steps and falls to a twentieth along half
            a cosine.
        warmup: Steps of the rise.
        weight_decay: Of matrices, as AdamW has it.
        layers: Of the model.
        heads: Of each layer.
        width: Of the residual stream.
        hidden: Of the feed-forward layers.
        values: Whether embeddings of numbers, or of digits, begin with features of their values, so
            that their order need not be learnt.
        fixed: Whether embeddings stay what they begin with. Those of tokens that training never
            asks for, such as the indices of larger inputs, would be unlearnt otherwise.
        model: Name or folder of a pretrained model that is trained on, instead of the small one; it
            has a tokenizer and positions of its own.
        rank: Of the adapters (LoRA) that are trained in its place; 0 trains all weights.
    """

    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tokenizer: TokenizerName = "numbers"
    attention: Attention = "softmax"
    positions: Positions = "places"
    through_temperature: bool = True
    steps: int = 6000
    batch: int = 32
    curriculum: float = 0.0
    optimiser: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.01
    layers: int = 4
    heads: int = 4
    width: int = 128
    hidden: int = 256
    values: bool = True
    fixed: bool = True
    model: str | None = None
    rank: int = 8

    def __post_init__(self) -> None:
        for name, kind in (
            ("tokenizer", TokenizerName),
            ("attention", Attention),
            ("positions", Positions),
            ("optimiser", Literal["muon", "adamw"]),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name}: expected one of {', '.join(get_args(kind))}, "
                    f"got {getattr(self, name)!r}"
                )
        for name in ("steps", "batch", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.model is not None and self.positions != "rotary":
            raise ValueError(
                f"positions: expected 'rotary', a pretrained model's own, got {self.positions!r}"
            )
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: expected a multiple of twice the {self.heads} heads, got {self.width}"
            )
        for algorithm, (smallest, largest) in self.lengths.items():
            if not 1 <= smallest <= largest:
                raise ValueError(
                    f"lengths: expected the smallest and the largest of {algorithm}, "
                    f"got {smallest} and {largest}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it comes back from JSON."""
        lengths = {name: list(both) for name, both in self.lengths.items()}
        return {**asdict(self), "lengths": lengths}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The recipe that plain data describes."""
        lengths = {name: (low, high) for name, (low, high) in data["lengths"].items()}
        return cls(**{**data, "lengths": lengths})
