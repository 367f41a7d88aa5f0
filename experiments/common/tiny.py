"""Tiny models with random weights, for quick runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

__all__ = ["save_tiny"]


def save_tiny(kind: Any, config: PreTrainedConfig, folder: Path) -> Path:
    """Write a model with random weights and a tokenizer with one token per character.

    Args:
        kind: Class of the model.
        config: Its configuration, for a vocabulary of at least 127 tokens.
        folder: Where to write it.

    Returns:
        The folder.
    """
    vocabulary = {"<unknown>": 0} | {chr(code): code for code in range(32, 127)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    torch.manual_seed(0)
    model = kind(config)
    # Larger weights, so that heads differ.
    for parameter in model.parameters():
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder)
    return folder
