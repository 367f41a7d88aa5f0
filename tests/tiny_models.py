"""Folders with tiny models and a tokenizer that takes a character a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as hf

SETTINGS: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def tokenizer() -> hf.PreTrainedTokenizerFast:
    vocabulary = {"<unknown>": 0} | {chr(code): code for code in range(32, 127)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return hf.PreTrainedTokenizerFast(tokenizer_object=made)


def save_llama(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**SETTINGS, **settings}))
    # Large enough that heads differ.
    for parameter in model.parameters():
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0
    return save(model, folder)


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
