"""The attentions that are compared: in training, and at inference on a softmax model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

import sharpmax
from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.evaluation import AT_ONCE, answer_entropies
from experiments.clrs_text.model import answer_logits, answer_rows
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Example, example
from sharpmax import RowStatistics, policies
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
    paper on SSMax, the factor is never below 1. The exponential law has a learned reference per
    head.

    Args:
        model: The model to train.
        recipe: The recipe with the attention.

    Attributes:
        scales: Per layer, the learned scales or references of its heads.
    """

    def __init__(self, model: PreTrainedModel, recipe: Recipe) -> None:
        super().__init__()
        self._model = [model]  # In a list, so that it is no submodule.
        self._recipe = recipe
        self._sharpened: Sharpened | None = None
        self.scales = nn.ParameterList()
        if recipe.attention in ("ssmax", "exponential"):
            self.scales.extend(
                nn.Parameter(torch.full((layer.heads or 1,), _FIRST_SCALE))
                for layer in attention_layers(model)
            )

    def policy(self) -> policies.Policy | Mapping[int | str, policies.Policy | None] | None:
        """Return what `sharpmax.sharpen` takes; None for plain softmax."""
        if self._recipe.attention == "paper":
            return policies.Paper(warn=False)
        if self.scales:
            return {layer: self._learned(layer) for layer in range(len(self.scales))}
        return None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the causal attention of a layer, as the model does within a `with` block."""
        if self._recipe.attention == "softmax":
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        policy = self._learned(layer) if self.scales else policies.Paper(warn=False)
        detached = not self._recipe.through_temperature
        output: Tensor = sharpmax.attention(
            query, key, value, is_causal=True, policy=policy, detach_temperature=detached
        )
        return output

    def _learned(self, layer: int) -> policies.Policy:
        kind = policies.LogLength if self._recipe.attention == "ssmax" else policies.Exponential
        return kind(self.scales[layer])

    def begin(self, encoder: Encoder) -> None:
        """Set references to the entropies of the model, which answers without this attention."""
        if self._recipe.attention == "exponential":
            measured = _references(self._model[0], encoder, self._recipe.lengths)
            with torch.no_grad():
                for scale, of_layer in zip(self.scales, measured.answers, strict=True):
                    scale.copy_(torch.from_numpy(of_layer))

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
    the largest training sizes. It uses no labels and no larger sizes. "by-row" has another
    reference per head, of the same kind, for rows that give no answer. "calibrated" fits one
    strength per head of the first law to answers at 1.5 times the largest training sizes.

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
    if method in ("exponential", "by-row"):
        answers, others = _references(model, encoder, lengths, each)
        if method == "exponential":
            return {layer: policies.Exponential(own) for layer, own in enumerate(answers)}
        return {
            layer: _ByRow(*both, rows=lambda: answer_rows(model))
            for layer, both in enumerate(zip(answers, others, strict=True))
        }
    found = _calibrated(model, encoder, _drawn(lengths, each, 1.5), steps)
    return found if found.layers else None


def applied(model: PreTrainedModel, change: Change) -> AbstractContextManager[object]:
    """Apply a change to a model within a `with` block."""
    return nullcontext() if change is None else sharpmax.sharpen(model, change)


class _References(NamedTuple):
    """Entropies that heads reach at the largest training sizes, [layers, heads]."""

    answers: np.ndarray
    others: np.ndarray


def _references(
    model: PreTrainedModel, encoder: Encoder, lengths: Mapping[str, tuple[int, int]], each: int = 16
) -> _References:
    examples = _drawn(lengths, each, 1.0)
    return _References(
        *(
            np.quantile(
                answer_entropies(model, encoder, examples, others=others).entropy,
                _QUANTILE,
                axis=-1,
            )
            for others in (False, True)
        )
    )


@dataclass(frozen=True, eq=False)
class _ByRow(policies.Policy, register=False):
    """The exponential law with one reference for rows that give answers, and one for others."""

    answers: Any = policies.parameter(at_least=0.0)
    others: Any = policies.parameter(at_least=0.0)
    rows: Callable[[], Tensor] = lambda: torch.zeros(0)

    def inverse_temperature(self, statistics: RowStatistics, tempered: Any = None) -> Tensor:
        entropy = statistics.entropy()
        rows = self.rows()
        gives = torch.zeros(entropy.shape[0], 1, entropy.shape[-1], dtype=torch.bool)
        gives.scatter_(-1, rows[:, None].cpu(), value=True)
        reference = torch.where(gives.to(entropy.device), self.answers, self.others)
        beta: Tensor = torch.exp((entropy - reference).clamp(min=0.0))
        return beta


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
