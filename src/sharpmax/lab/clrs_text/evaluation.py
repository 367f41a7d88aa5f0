"""How often a model answers right, token by token, at sizes that it has seen or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from sharpmax.lab.clrs_text.data import Encoder, batches
from sharpmax.lab.clrs_text.model import answer_logits
from sharpmax.tasks.clrs_text import Example

__all__ = ["exact"]

# Tokens that pass through the model at once.
_AT_ONCE = 8192


def exact(model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example]) -> list[bool]:
    """Whether greedy decoding gives the answers of examples.

    The answer is read along with its question: greedy decoding gives it if each of its tokens is
    the likeliest after those before it.

    Args:
        model: A causal language model, sharpened or not.
        encoder: Makes tokens of examples.
        examples: Without traces.

    Returns:
        Whether the answer is right, for each example.
    """
    right = [False] * len(examples)
    encoded = [encoder(one) for one in examples]
    for numbers, batch in batches(encoded, _AT_ONCE):
        with torch.inference_mode():
            likeliest = answer_logits(model, batch).argmax(-1).cpu()
        hits = ((likeliest == batch.targets) | (batch.targets < 0)).all(-1)
        for number, hit in zip(numbers, hits.tolist(), strict=True):
            right[number] = hit
    return right
