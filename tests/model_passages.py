"""The calls of a model's attention, and what each should return, computed the slow way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from sharpmax.models._config import MASKED, NAME
from sharpmax.models._interface import attention_forward, masked_attention_forward, register


@dataclass
class Passage:
    """One call of an attention layer, and what it gave."""

    module: torch.nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    output: Tensor


@contextmanager
def watched() -> Iterator[list[Passage]]:
    """Collect every call of the attention interface within a block."""
    passages: list[Passage] = []

    def watching(forward: Callable[..., Any]) -> Callable[..., Any]:
        def watch(module, query, key, value, attention_mask, **options):
            output, weights = forward(module, query, key, value, attention_mask, **options)
            if forward is masked_attention_forward:
                options["is_causal"] = False
            passages.append(Passage(module, query, key, value, attention_mask, options, output))
            return output, weights

        return watch

    AttentionInterface.register(NAME, watching(attention_forward))
    AttentionInterface.register(MASKED, watching(masked_attention_forward))
    try:
        yield passages
    finally:
        register()


def visible_keys(passage: Passage) -> Tensor:
    """Booleans [batch, heads, queries, keys], from the mask, or from causality without one."""
    queries, keys = passage.query.shape[2], passage.key.shape[2]
    shape = (*passage.query.shape[:3], keys)
    if passage.mask is None:
        causal = passage.options.get("is_causal")
        causal = getattr(passage.module, "is_causal", True) if causal is None else causal
        whole = torch.ones(queries, keys, dtype=torch.bool)
        return (whole.tril() if causal and queries > 1 else whole).expand(shape)
    if passage.mask.dtype == torch.bool:
        return passage.mask.expand(shape)
    return (passage.mask > 0.5 * torch.finfo(passage.mask.dtype).min).expand(shape)


def expected_output(passage: Passage, reference: float) -> Tensor:
    """softmax(beta e) V with beta = exp(max(0, H - reference)), in double precision, with loops.

    A sink is one more key whose value is zero.
    """
    options = passage.options
    query, key, value = (x.double() for x in (passage.query, passage.key, passage.value))
    batch, heads, queries, width = query.shape
    group = heads // key.shape[1]
    visible = visible_keys(passage)
    scale = options.get("scaling")
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    output = torch.zeros(batch, queries, heads, value.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            logits = scale * query[b, h] @ key[b, h // group].T
            if (cap := options.get("softcap")) is not None:
                logits = cap * torch.tanh(logits / cap)
            if (bias := options.get("position_bias")) is not None:
                logits = logits + bias.expand(batch, -1, -1, -1)[b, h].double()
            for q in range(queries):
                seen = visible[b, h, q]
                row, values = logits[q][seen], value[b, h // group][seen]
                if (sinks := options.get("s_aux")) is not None:
                    row = torch.cat([row, sinks[h : h + 1].double()])
                    values = torch.cat([values, torch.zeros_like(values[:1])])
                if len(row) == 0:
                    continue
                weights = torch.softmax(row, 0)
                entropy = -torch.special.xlogy(weights, weights).sum()
                beta = torch.exp(torch.clamp(entropy - reference, min=0.0))
                output[b, q, h] = torch.softmax(beta * row, 0) @ values
    return output
