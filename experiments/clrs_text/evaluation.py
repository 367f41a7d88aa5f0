"""What is measured of a model: correct answers, and the entropy of its heads as it answers."""

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

__all__ = ["AT_ONCE", "RowEntropies", "answer_entropies", "shares_correct"]

AT_ONCE = 8192
"""Tokens per forward pass."""


def shares_correct(
    model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example]
) -> list[float]:
    """Compute which share of each answer greedy decoding produces.

    One forward pass over question and answer suffices: greedy decoding produces the answer exactly
    if each of its tokens is the most likely one after those before it.

    Args:
        model: A causal language model, sharpened or not.
        encoder: The encoder of the model.
        examples: Examples without traces.

    Returns:
        Per example, the share of answer tokens that are the most likely; 1 is a correct answer.
    """
    found = [0.0] * len(examples)
    for numbers, batch in batches([encoder(one) for one in examples], AT_ONCE):
        with torch.inference_mode():
            likeliest = answer_logits(model, batch).argmax(-1).cpu()
        shares = (likeliest == batch.targets).sum(-1) / (batch.targets >= 0).sum(-1)
        for number, share in zip(numbers, shares.tolist(), strict=True):
            found[number] = share
    return found


class RowEntropies(NamedTuple):
    """Entropies of the rows that predict answer tokens, under plain softmax.

    Attributes:
        entropy: Entropy in nats, [layers, heads, rows].
        visible: Number of tokens that a row attends to, [rows].
    """

    entropy: np.ndarray
    visible: np.ndarray


class _LastPass:
    """A recorder that keeps the statistics of every layer in the last forward pass."""

    def __init__(self) -> None:
        self.layers: dict[int, RowStatistics] = {}

    def record(self, layer: int, statistics: RowStatistics) -> None:
        self.layers[layer] = statistics


def answer_entropies(
    model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example], *, others: bool = False
) -> RowEntropies:
    """Measure the entropy of every head in the rows that predict the answers.

    Args:
        model: A causal language model, not sharpened.
        encoder: The encoder of the model.
        examples: The questions and their answers.
        others: Measure the rows of the questions instead.

    Returns:
        The entropies, one row per answer token, or per token of a question but its last.
    """
    entropies: list[Tensor] = []
    visible: list[Tensor] = []
    recorder = _LastPass()
    with record(model, recorder):
        for _, batch in batches([encoder(one) for one in examples], AT_ONCE):
            with torch.inference_mode():
                answer_logits(model, batch)
            if others:
                first = batch.before[:, :1]
                example, row = (torch.arange(batch.tokens.shape[1]) < first).nonzero(as_tuple=True)
            else:
                example, place = (batch.targets >= 0).nonzero(as_tuple=True)
                row = batch.before[example, place]
            # The slice between the two indices moves heads to the end: [rows, heads] per layer.
            layers = [
                each.entropy()[example, :, row] for _, each in sorted(recorder.layers.items())
            ]
            entropies.append(torch.stack(layers).transpose(1, 2).cpu())
            visible.append(row + 1)
    return RowEntropies(torch.cat(entropies, -1).numpy(), torch.cat(visible).numpy())
