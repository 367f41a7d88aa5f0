"""How often a model answers right, token by token, at sizes that it has seen or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from experiments.clrs_text.data import Encoder, batches
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.task import Example

__all__ = ["shares_right"]

# Tokens that pass through the model at once.
_AT_ONCE = 8192


def shares_right(
    model: PreTrainedModel, encoder: Encoder, examples: Sequence[Example]
) -> list[float]:
    """How much of the answers greedy decoding gives.

    The answer is read along with its question: greedy decoding gives it if each of its tokens is
    the likeliest after those before it.

    Args:
        model: A causal language model, sharpened or not.
        encoder: Makes tokens of examples.
        examples: Without traces.

    Returns:
        The share of the tokens of its answer that are the likeliest, for each example; the answer
        is right where it is 1.
    """
    found = [0.0] * len(examples)
    encoded = [encoder(one) for one in examples]
    for numbers, batch in batches(encoded, _AT_ONCE):
        with torch.inference_mode():
            likeliest = answer_logits(model, batch).argmax(-1).cpu()
        shares = (likeliest == batch.targets).sum(-1) / (batch.targets >= 0).sum(-1)
        for number, share in zip(numbers, shares.tolist(), strict=True):
            found[number] = share
    return found
