"""How far the heads of a model spread their attention where it answers, at growing sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.task import Example
from sharpmax._statistics import RowStatistics
from sharpmax.models import record

__all__ = ["RowEntropies", "answer_entropies"]

# Tokens that pass through the model at once.
_AT_ONCE = 8192


class RowEntropies(NamedTuple):
    """Of the rows from which the tokens of answers are foretold, with plain softmax.

    Attributes:
        entropy: In nats: [layers, heads, rows].
        visible: Number of tokens that a row sees: [rows].
    """

    entropy: np.ndarray
    visible: np.ndarray


class _Keeper:
    """Keeps the statistics of every layer of the last pass."""

    def __init__(self) -> None:
        self.kept: dict[int, RowStatistics] = {}

    def record(self, layer: int, statistics: RowStatistics) -> None:
        self.kept[layer] = statistics


def answer_entropies(
    model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example]
) -> RowEntropies:
    """Measure the entropy of every head where it matters: in the rows that give the answer.

    Args:
        model: A causal language model, not sharpened.
        encoder: Makes tokens of examples.
        examples: What is asked; the answers are read along.

    Returns:
        The entropies, a row for each token of each answer.
    """
    encoded = [encoder(one) for one in examples]
    entropies: list[Tensor] = []
    visible: list[Tensor] = []
    keeper = _Keeper()
    with record(model, keeper):
        for _, batch in batches(encoded, _AT_ONCE):
            with torch.inference_mode():
                answer_logits(model, batch)
            example, place = (batch.targets >= 0).nonzero(as_tuple=True)
            row = batch.before[example, place]
            kept = [keeper.kept[layer] for layer in sorted(keeper.kept)]
            # [layers, rows, heads], since the two indices stand apart.
            of_rows = [each.entropy()[example, :, row] for each in kept]
            entropies.append(torch.stack(of_rows).transpose(1, 2).cpu())
            visible.append(row + 1)
    return RowEntropies(torch.cat(entropies, -1).numpy(), torch.cat(visible).numpy())
