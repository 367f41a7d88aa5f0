"""Folders with tiny models and a tokenizer with one token per character."""

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


def others() -> dict[str, tuple[hf.PreTrainedModel, str]]:
    """Models that are not causal language models with attention, and what errors say of each."""
    few = {"vocab_size": 128, "hidden_size": 8, "num_hidden_layers": 1}
    bert = hf.BertConfig(**few, intermediate_size=8, num_attention_heads=2)
    t5 = hf.T5Config(vocab_size=128, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    return {
        "encoder": (hf.BertModel(bert), "this one attends to later tokens; use a decoder"),
        "masked": (hf.BertForMaskedLM(bert), "this one attends to later tokens"),
        "headless": (
            hf.LlamaModel(hf.LlamaConfig(**SETTINGS)),
            "this one has no language-model head",
        ),
        "pair": (
            hf.T5ForConditionalGeneration(t5),
            "this one is an encoder-decoder; use a decoder",
        ),
        "mamba": (
            hf.MambaForCausalLM(hf.MambaConfig(**few, state_size=2)),
            "expected a model with attention layers, found none",
        ),
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
