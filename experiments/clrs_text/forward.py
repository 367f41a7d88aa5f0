"""The forward pass of a training, which computes no more than the loss needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from experiments.clrs_text.data import Batch

__all__ = ["Attend", "training_logits"]

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Causal attention of a layer: queries, keys and values [examples, heads, tokens, width]."""


# Parts of a batch whose attention is computed together; examples of one part have similar lengths.
_PARTS = 3


def training_logits(
    model: PreTrainedModel, batch: Batch, attend: Attend, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the logits of the answer tokens, [answers of all examples, vocabulary].

    In float32 the result equals that of `answer_logits` up to rounding, at less cost: a beginning
    that several examples share is computed once, padding and the last token not at all; the last
    layer computes the rows that give answers alone; the projections of one input are one product,
    and there are no rotations by an angle of zero.

    Args:
        model: The small decoder with embeddings of places.
        batch: Its inputs, sorted by length.
        attend: Its attention.
        dtype: Type of the factors in products with weights; sums and all else are in float32.
    """
    decoder: Any = model
    tree = _tree(batch)
    answers = batch.targets >= 0
    states = decoder.get_input_embeddings()(tree.tokens) + decoder.places(tree.positions)
    longest = batch.tokens.shape[1]
    padded = torch.cat([F.pad(part, (0, longest - part.shape[1])) for part in tree.parts])
    rows = padded.gather(1, batch.before)[answers]
    layers = decoder.model.layers
    for number, layer in enumerate(layers):
        own = layer.self_attn
        normed = _normed(layer.input_layernorm, states)
        together = _product(normed, dtype, own.q_proj, own.k_proj, own.v_proj)
        mixed = torch.cat(
            [
                attend(number, *_by_head(F.embedding(part, together), own.head_dim))
                .transpose(1, 2)
                .flatten(2)
                .flatten(0, 1)
                for part in tree.parts
            ]
        )
        places = tree.places
        if number == len(layers) - 1:
            states, places = states[rows], places[rows]
        states = states + _product(F.embedding(places, mixed), dtype, own.o_proj)
        normed, mlp = _normed(layer.post_attention_layernorm, states), layer.mlp
        gate, up = _product(normed, dtype, mlp.gate_proj, mlp.up_proj).chunk(2, -1)
        states = states + _product(F.silu(gate) * up, dtype, mlp.down_proj)
    return _product(_normed(decoder.model.norm, states), dtype, decoder.lm_head)


class _Tree(NamedTuple):
    """The tokens of a batch; beginnings that examples share are there once.

    Attributes:
        tokens: Tokens, [tokens].
        positions: Positions, [tokens].
        parts: Per part of the batch, the index of each token, [examples, tokens of the longest].
        places: Where each token first is in all parts, one after the other, [tokens].
    """

    tokens: Tensor
    positions: Tensor
    parts: list[Tensor]
    places: Tensor


def _tree(batch: Batch) -> _Tree:
    # Causal attention gives equal states to equal beginnings. The last token gives no answer.
    found: dict[tuple[int, int, int], int] = {}
    places: list[int] = []
    parts = []
    begun = 0
    lengths = (batch.before.amax(1) + 1).tolist()
    inputs = list(zip(batch.tokens.tolist(), batch.positions.tolist(), lengths, strict=True))
    size = math.ceil(len(inputs) / _PARTS)
    for examples in (inputs[start : start + size] for start in range(0, len(inputs), size)):
        longest = max(length for *_, length in examples)
        # Causality hides the padding after an example.
        part = torch.zeros(len(examples), longest, dtype=torch.long)
        for row, (tokens, positions, length) in enumerate(examples):
            own = [-1]
            for place in range(length):
                key = (own[-1], tokens[place], positions[place])
                own.append(found.setdefault(key, len(found)))
                if own[-1] == len(places):
                    places.append(begun + place)
            part[row, :length] = torch.tensor(own[1:])
            begun += longest
        parts.append(part)
    _, tokens, positions = torch.tensor(list(found)).unbind(1)
    return _Tree(tokens, positions, parts, torch.tensor(places))


def _normed(norm: Any, states: Tensor) -> Tensor:
    return F.rms_norm(states, states.shape[-1:], norm.weight, norm.variance_epsilon)


def _by_head(together: Tensor, width: int) -> tuple[Tensor, ...]:
    """Split queries, keys and values, each [examples, heads, tokens, width]."""
    parted: Tensor = together.unflatten(-1, (3, -1, width))
    return torch.unbind(parted.permute(2, 0, 3, 1, 4))


def _product(states: Tensor, dtype: torch.dtype, *projections: Any) -> Tensor:
    """Apply projections side by side, as one product."""
    weights = torch.cat([each.weight.to(dtype) for each in projections])
    return F.linear(states.to(dtype), weights).float()
