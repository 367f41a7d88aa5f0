"""The methods that change a trained model at inference alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

import sharpmax
from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.entropy import answer_entropies
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.task import Example, example
from sharpmax import policies
from sharpmax.models import Calibration, Splits, calibrate

__all__ = ["AT_INFERENCE", "Method", "Rule", "applied", "rule_of"]

Method = Literal["softmax", "paper", "exponential", "calibrated"]
"""What is done to a model that was trained with plain softmax."""

AT_INFERENCE: tuple[Method, ...] = ("softmax", "paper", "exponential", "calibrated")
"""In the order of tables."""

Rule: TypeAlias = policies.Policy | Mapping[int | str, policies.Policy | None] | Calibration | None
"""What `sharpmax.sharpen` takes; None leaves the model alone."""

# Examples that references and calibrations come from are of the split for training, but of a seed
# that no training has.
_SEED = 1_000_003
# Rows at training sizes are left alone, but for one in twenty.
_QUANTILE = 0.95


def rule_of(
    method: Method,
    model: PreTrainedModel,
    encoder: Encoder,
    lengths: Mapping[str, tuple[int, int]],
    *,
    each: int = 16,
    steps: int = 40,
) -> Rule:
    """Make the rule of a method for a trained model.

    "exponential" sharpens rows that are more spread than the answers of the largest training sizes
    are in 19 of 20 cases, head by head: no labels and no larger sizes are used. "calibrated" fits a
    strength a head to this law, by answers at one and a half times the largest training sizes,
    which it has to be given; larger sizes it never sees.

    Args:
        method: Its name.
        model: A model that was trained with plain softmax.
        encoder: Makes tokens of examples.
        lengths: The algorithms, and for each the smallest and the largest size in training.
        each: Examples of each algorithm.
        steps: Of the fit of a calibration.

    Returns:
        What `sharpmax.sharpen` takes; None for plain softmax, and for a calibration that found
        nothing to change.
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


def applied(model: PreTrainedModel, rule: Rule) -> AbstractContextManager[object]:
    """A model with a rule, within a `with` block."""
    return nullcontext() if rule is None else sharpmax.sharpen(model, rule)


def _drawn(lengths: Mapping[str, tuple[int, int]], each: int, times: float) -> list[Example]:
    """Examples at a multiple of the largest training sizes, of all algorithms in turn."""
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
        """Minus the log-probability of each answer, a token."""
        losses: list[Tensor] = [torch.zeros(())] * len(items)
        encoded = [encoder(one) for one in items]
        for numbers, batch in batches(encoded, 8192):
            logits = answer_logits(of, batch)  # type: ignore[arg-type]
            by_token = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
            means = by_token.sum(-1) / (batch.targets >= 0).sum(-1)
            for number, mean in zip(numbers, means, strict=True):
                losses[number] = mean
        return torch.stack(losses)

    return calibrate(
        model,
        splits,
        loss,
        tolerance=math.inf,
        family="entropy",
        steps=steps,
        batch=16,
    )
