"""The attentions that are compared: in training, and at inference on a softmax model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

import sharpmax
from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.evaluation import AT_ONCE, answer_entropies
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Example, example
from sharpmax import policies
from sharpmax.models import Calibration, Sharpened, Splits, calibrate
from sharpmax.models._inspect import attention_layers

__all__ = ["Change", "TrainedAttention", "applied", "change_of"]

Change: TypeAlias = (
    policies.Policy | Mapping[int | str, policies.Policy | None] | Calibration | None
)
"""What `sharpmax.sharpen` takes; None leaves the model unchanged."""

# The initial scale of SSMax: above a factor of 1 for all rows of 8 tokens or more, so that every
# row that matters has a gradient.
_FIRST_SCALE = 0.5
# References and calibrations use examples of the training split, with a seed that no training has.
_SEED = 1_000_003
# The reference leaves 19 of 20 rows at training sizes unchanged.
_QUANTILE = 0.95


class TrainedAttention(nn.Module):
    """The attention that a model is trained with, active within a `with` block.

    Plain softmax changes nothing. The paper's rule has no parameters. SSMax multiplies the logits
    of a head by s log n: it is `policies.LogLength` with a learned scale per head. Unlike in the
    paper on SSMax, the factor is never below 1.

    Args:
        model: The model to train.
        recipe: The recipe with the attention.
    """

    def __init__(self, model: PreTrainedModel, recipe: Recipe) -> None:
        super().__init__()
        self._model = [model]  # In a list, so that it is no submodule.
        self._recipe = recipe
        self._sharpened: Sharpened | None = None
        self.scales = nn.ParameterList()
        if recipe.attention == "ssmax":
            self.scales.extend(
                nn.Parameter(torch.full((layer.heads or 1,), _FIRST_SCALE))
                for layer in attention_layers(model)
            )

    def policy(self) -> policies.Policy | Mapping[int | str, policies.Policy | None] | None:
        """Return what `sharpmax.sharpen` takes; None for plain softmax."""
        if self._recipe.attention == "paper":
            return policies.Paper(warn=False)
        if self._recipe.attention == "ssmax":
            return {layer: policies.LogLength(scale) for layer, scale in enumerate(self.scales)}
        return None

    def __enter__(self) -> TrainedAttention:
        if (policy := self.policy()) is not None:
            self._sharpened = sharpmax.sharpen(
                self._model[0], policy, detach_temperature=not self._recipe.through_temperature
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sharpened is not None:
            self._sharpened.restore()
            self._sharpened = None


def change_of(
    method: str,
    model: PreTrainedModel,
    encoder: Encoder,
    lengths: Mapping[str, tuple[int, int]],
    *,
    each: int = 16,
    steps: int = 40,
) -> Change:
    """Make the change that a method applies to a trained model.

    "exponential" takes as the reference of each head the 95% quantile of its entropy on answers at
    the largest training sizes. It uses no labels and no larger sizes. "calibrated" fits one
    strength per head of the same law to answers at 1.5 times the largest training sizes.

    Args:
        method: One of `AT_INFERENCE`.
        model: A model that was trained with plain softmax.
        encoder: The encoder of the model.
        lengths: The smallest and the largest training size, by algorithm.
        each: Examples per algorithm.
        steps: Steps of the calibration.

    Returns:
        What `sharpmax.sharpen` takes; None for plain softmax, and for a calibration that changes
        nothing.
    """
    if method == "softmax":
        return None
    if method == "paper":
        return policies.Paper(warn=False)
    if method == "exponential":
        measured = answer_entropies(model, encoder, _drawn(lengths, each, 1.0))
        references = np.quantile(measured.entropy, _QUANTILE, axis=-1)
        return {layer: policies.Exponential(of_layer) for layer, of_layer in enumerate(references)}
    found = _calibrated(model, encoder, _drawn(lengths, each, 1.5), steps)
    return found if found.layers else None


def applied(model: PreTrainedModel, change: Change) -> AbstractContextManager[object]:
    """Apply a change to a model within a `with` block."""
    return nullcontext() if change is None else sharpmax.sharpen(model, change)


def _drawn(lengths: Mapping[str, tuple[int, int]], each: int, times: float) -> list[Example]:
    """Draw examples at a multiple of the largest training sizes, from all algorithms in turn."""
    return [
        example(name, math.ceil(times * largest), seed=_SEED, index=index)
        for index in range(each)
        for name, (_, largest) in lengths.items()
    ]


def _calibrated(
    model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example], steps: int
) -> Calibration:
    half, quarter = len(examples) // 2, len(examples) // 4
    splits = Splits(examples[:half], examples[half : half + quarter], examples[half + quarter :])

    def loss(of: nn.Module, items: Sequence[Any]) -> Tensor:
        """Cross-entropy per token of each answer."""
        losses: list[Tensor] = [torch.zeros(())] * len(items)
        for numbers, batch in batches([encoder(one) for one in items], AT_ONCE):
            logits = answer_logits(of, batch)  # type: ignore[arg-type]
            by_token = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
            means = by_token.sum(-1) / (batch.targets >= 0).sum(-1)
            for number, mean in zip(numbers, means, strict=True):
                losses[number] = mean
        return torch.stack(losses)

    return calibrate(
        model, splits, loss, tolerance=math.inf, family="entropy", steps=steps, batch=16
    )
