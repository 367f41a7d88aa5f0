"""Train a small language model on source code, at a learning rate that suits it or not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import sharpmax
from sharpmax.models import AlarmRules, AttentionWarning

__all__ = ["LEARNING_RATES", "RULES", "small_model", "train", "training_step"]

LEARNING_RATES = {"stable": 1e-3, "collapsing": 3e-2}
"""Of AdamW, without warm-up."""

RULES = AlarmRules(warm_up=200)
"""The rules of alarms, for a training that takes hundreds of steps and not thousands."""

_VOCABULARY = 128  # characters


def small_model(width: int, layers: int, positions: int, seed: int = 0) -> Any:
    """Return a decoder with heads of 16 numbers and random weights."""
    build: Any = LlamaForCausalLM  # Its constructor is not annotated.
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=layers, num_attention_heads=width // 16,
        num_key_value_heads=width // 16, max_position_embeddings=positions,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(config)


def training_step(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    """Take one step, and return the loss."""
    loss: Tensor = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(rate: float, *, steps: int, every: int, seed: int = 0) -> dict[str, Any]:
    """Train a model under a monitor; return its readings and alarms as plain data."""
    model = small_model(64, 2, 128, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    watched = sharpmax.monitor(model, every=every, rules=RULES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)  # they are part of the result
        for tokens in watched.over(_batches(steps, seed)):
            watched.loss(training_step(model, optimizer, tokens))
    return {
        "learning_rate": rate,
        "readings": [
            {"step": each.step, "loss": each.loss, "heads": [asdict(head) for head in each.heads]}
            for each in watched.readings
        ],
        "alarms": [asdict(alarm) for alarm in watched.alarms],
    }


def _batches(steps: int, seed: int, length: int = 128, rows: int = 8) -> Iterator[Tensor]:
    """Yield windows of the source code of sharpmax, one token per character."""
    source = Path(sharpmax.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py")))
    ids = torch.tensor([min(ord(each), _VOCABULARY - 1) for each in text])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - length, (rows,), generator=generator)
        yield torch.stack([ids[start : start + length] for start in starts.tolist()])
