"""What the benchmark of models times: passes and decoding, of the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sharpmax.models import diagnose

__all__ = ["decoding", "halved", "small_model", "twin", "ways_to_pass"]

Call = Callable[[], Any]


def small_model(positions: int) -> Any:
    """A model with random weights, so small that its attention is most of its work."""
    from transformers import LlamaConfig, LlamaForCausalLM

    # Not annotated.
    build: Any = LlamaForCausalLM

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
    """A second model with the same weights in the same memory, to be changed on its own."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def halved(length: int, shortest: int = 128) -> list[int]:
    """A length and its halves, from the shortest on: where a diagnosis looks.

    Example:
        >>> halved(1024)
        [128, 256, 512, 1024]
    """
    found = [length, length // 2]
    while found[-1] // 2 >= shortest:
        found.append(found[-1] // 2)
    return found[::-1]


def ways_to_pass(model: Any, tokens: Tensor) -> dict[str, Call]:
    """A plain pass over tokens, a diagnosis of them, and a pass that shows all weights.

    None of them computes what follows the last layer for each token of the vocabulary. Weights are
    shown by a model that uses eager attention alone.
    """
    lengths = halved(len(tokens))

    def forward(**options: Any) -> Any:
        with torch.no_grad():
            return model.base_model(input_ids=tokens[None], use_cache=False, **options)

    return {
        "forward": forward,
        "diagnose": lambda: diagnose(model, tokens, lengths),
        "output_attentions": lambda: forward(output_attentions=True),
    }


def decoding(model: Any, tokens: Tensor, steps: int) -> Call:
    """Decoding of some tokens behind a context, each time from the same place."""
    with torch.no_grad():
        cache = model(tokens[None], use_cache=True, logits_to_keep=1).past_key_values

    def decode() -> None:
        with torch.no_grad():
            for step in range(steps):
                model(tokens[None, step : step + 1], past_key_values=cache, use_cache=True)
        cache.crop(-steps)

    return decode
