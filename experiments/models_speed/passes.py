"""The model calls that the benchmark of models times: passes and decoding, on shared weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from sharpmax.models import diagnose

__all__ = ["Call", "decoding", "halved", "passes", "small_model", "twin"]

Call = Callable[[], Any]


def small_model(positions: int) -> Any:
    """Return a model with random weights, so small that attention is most of its work."""
    build: Any = LlamaForCausalLM  # Its constructor is not annotated.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
        )
        return build(config).eval()


def twin(model: Any) -> Any:
    """Return a second model that shares the weights in memory and can be changed on its own."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def halved(length: int, shortest: int = 128) -> list[int]:
    """Return a length and its halves down to the shortest: the lengths of a diagnosis.

    Example:
        >>> halved(1024)
        [128, 256, 512, 1024]
    """
    found = [length, length // 2]
    while found[-1] // 2 >= shortest:
        found.append(found[-1] // 2)
    return found[::-1]


def passes(model: Any, tokens: Tensor) -> dict[str, Call]:
    """Return a plain pass over tokens, a diagnosis, and a pass that returns all weights.

    None of them computes logits over the vocabulary. Only a model with eager attention can return
    its weights.
    """

    def forward(**options: Any) -> Any:
        with torch.no_grad():
            return model.base_model(input_ids=tokens[None], use_cache=False, **options)

    return {
        "forward": forward,
        "diagnose": lambda: diagnose(model, tokens, halved(len(tokens))),
        "output_attentions": lambda: forward(output_attentions=True),
    }


def decoding(model: Any, tokens: Tensor, steps: int) -> Call:
    """Return a call that decodes some tokens after a context, always from the same position."""
    with torch.no_grad():
        cache = model(tokens[None], use_cache=True, logits_to_keep=1).past_key_values

    def decode() -> None:
        with torch.no_grad():
            for step in range(steps):
                model(tokens[None, step : step + 1], past_key_values=cache, use_cache=True)
        cache.crop(-steps)

    return decode
