"""The forward pass of a training, which computes no more than the loss needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from experiments.clrs_text.data import Batch

__all__ = ["Attend", "training_logits"]

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Causal attention of a layer: queries, keys and values [examples, heads, tokens, width]."""


def training_logits(model: PreTrainedModel, batch: Batch, attend: Attend) -> Tensor:
    """Return the logits of the answer tokens, [answers of all examples, vocabulary].

    The result equals that of `answer_logits` up to rounding, at three quarters of its cost with
    gradients: the last layer computes the rows that give answers alone, the projections of one
    input are one product, and there are no rotations by an angle of zero.

    Args:
        model: The small decoder with embeddings of places.
        batch: Its inputs.
        attend: Its attention.
    """
    decoder: Any = model
    answers = batch.targets >= 0
    states = decoder.get_input_embeddings()(batch.tokens) + decoder.places(batch.positions)
    examples, count, width = states.shape
    first = torch.arange(examples)[:, None] * count
    rows = (first + batch.before)[answers]
    layers = decoder.model.layers
    for number, layer in enumerate(layers):
        own = layer.self_attn
        normed = _normed(layer.input_layernorm, states)
        queries, keys, values = (
            each.view(examples, count, -1, own.head_dim).transpose(1, 2)
            for each in _products(normed, own.q_proj, own.k_proj, own.v_proj)
        )
        mixed = attend(number, queries, keys, values).transpose(1, 2).flatten(2).flatten(0, 1)
        states = states.view(-1, width)
        if number == len(layers) - 1:
            states, mixed = states[rows], mixed[rows]
        states = states + own.o_proj(mixed)
        gate, up = _products(
            _normed(layer.post_attention_layernorm, states), layer.mlp.gate_proj, layer.mlp.up_proj
        )
        states = states + layer.mlp.down_proj(F.silu(gate) * up)
        if number < len(layers) - 1:
            states = states.view(examples, count, width)
    logits: Tensor = decoder.lm_head(_normed(decoder.model.norm, states))
    return logits


def _normed(norm: Any, states: Tensor) -> Tensor:
    return F.rms_norm(states, states.shape[-1:], norm.weight, norm.variance_epsilon)


def _products(states: Tensor, *projections: Any) -> tuple[Tensor, ...]:
    """Apply several projections as one."""
    weights = [each.weight for each in projections]
    product = F.linear(states, torch.cat(weights))
    return torch.split(product, [len(weight) for weight in weights], dim=-1)
