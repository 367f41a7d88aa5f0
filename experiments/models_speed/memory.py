"""Measure the memory of one pass of a model, beyond the model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from experiments.common.memory import growth
from experiments.models_speed.passes import passes

__all__ = ["extra_memory"]

WARM_UP = 64
"""Tokens of the first pass, which loads everything before the measurement."""


def extra_memory(method: str, folder: str, length: int, threads: int) -> int:
    """Return the peak memory of one pass in this process, in bytes; use a process of its own.

    Args:
        method: "forward", "diagnose" or "output_attentions".
        folder: Folder of the model.
        length: Number of tokens.
        threads: Number of threads.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()
    if method == "output_attentions":
        model.set_attn_implementation("eager")
    tokens = torch.randint(model.config.vocab_size, (length,))
    passes(model, tokens[:WARM_UP])[method]()
    return growth(passes(model, tokens)[method])[0]
