"""How much memory a pass of a model takes: plain, diagnosed, and with the weights shown.

Measured in a process of its own, whose largest size so far the system remembers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from experiments.common.memory import growth, measure_apart

__all__ = ["WAYS", "extra_memory"]

WAYS = ("forward", "diagnose", "output_attentions")
"""What can be measured."""

WARM_UP = 64
"""Tokens of the pass that loads everything before the measurement."""


def extra_memory(way: str, folder: str | Path, *, length: int, threads: int) -> int | None:
    """Bytes that one pass takes at its peak, beyond the model.

    Args:
        way: One of `WAYS`.
        folder: Of the model.
        length: Number of tokens.
        threads: Number of threads.

    Returns:
        The bytes, or None where the system does not tell (it has to be Linux).

    Raises:
        ValueError: There is no such way.
        subprocess.CalledProcessError: The measuring process failed.
    """
    if way not in WAYS:
        raise ValueError(f"way: expected one of {', '.join(WAYS)}, got {way!r}")
    return measure_apart(__name__, way, str(folder), length, threads)


def _measure(way: str, folder: str, length: int, threads: int) -> int:
    """In the process of its own."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from experiments.models_speed.works import ways_to_pass

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()
    if way == "output_attentions":
        model.set_attn_implementation("eager")
    tokens = torch.randint(model.config.vocab_size, (length,))
    ways_to_pass(model, tokens[:WARM_UP])[way]()
    return growth(ways_to_pass(model, tokens)[way])[0]


if __name__ == "__main__":
    sys.stdout.write(f"{_measure(*json.loads(sys.argv[1]))}\n")
