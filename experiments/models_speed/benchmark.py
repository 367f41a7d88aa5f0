"""Measure what diagnosing and sharpening a model cost, compared with running it unchanged.

All calls use the same weights and tokens and are timed in turn. The model is
SmolLM2-135M-Instruct, or a small one with random weights for a quick run.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from experiments.common.memory import measure_apart
from experiments.common.timing import Step, interleave, thread_count
from experiments.models_speed.memory import extra_memory
from experiments.models_speed.passes import Call, decoding, halved, passes, small_model, twin
from sharpmax.models import diagnose, load_model, sharpen
from sharpmax.policies import Exponential
from sharpmax.tasks import own_source

__all__ = ["QUICK", "Settings", "load", "plan"]

TARGETS: dict[str, tuple[str, float]] = {
    "diagnose": ("at most", 1.3),
    "prefill": ("at least", 0.9),
    "decode": ("at least", 0.95),
}
"""Largest time relative to the baseline ("at most"), or smallest speed ("at least")."""

POLICY = Exponential(3.0)
"""Policy of all heads. Its parameter does not change its cost."""

TOLERANCE = 0.01
"""Largest difference, in nats, between the entropies of a diagnosis and of eager attention."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        model: As `sharpmax.models.load_model` takes it; None is a small one with random weights.
        threads: Numbers of threads to time.
        diagnosed: Tokens of the diagnosis that is compared with a plain pass.
        shown: Tokens of the diagnosis that is compared with `output_attentions=True`.
        prefill: Tokens of a sharpened pass, and of the context of decoding.
        decoded: Tokens per timed decoding.
        memory: Numbers of tokens at which the memory of a small model's diagnosis is measured.
        seconds: Time that each call may use, as in `interleave`.
        least: Smallest number of timed rounds per call.
    """

    model: str | None = "smollm2"
    threads: tuple[int, ...] = (2,)
    diagnosed: int = 4096
    shown: int = 2048
    prefill: int = 2048
    decoded: int = 16
    memory: tuple[int, ...] = (8192, 16384, 32768)
    seconds: float = 20.0
    least: int = 3

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the policy."""
        return {**vars(self), "policy": POLICY.to_dict()}


QUICK = Settings(
    model=None,
    threads=(1,),
    diagnosed=512,
    shown=256,
    prefill=256,
    decoded=4,
    memory=(512, 1024),
    seconds=0.05,
)
"""Settings of a run that shows that everything works; its times mean little."""


def load(settings: Settings) -> tuple[Any, Tensor]:
    """Load the model, and the tokens of sharpmax's own source code.

    Raises:
        CannotLoadError: The model cannot be loaded.
    """
    longest = max(settings.diagnosed, settings.shown, settings.prefill)
    if settings.model is None:
        model, tokens = small_model(longest + settings.decoded), list(own_source().encode())
    else:
        model, tokenizer = load_model(settings.model)
        tokens = tokenizer(own_source(), verbose=False)["input_ids"]
    return model, torch.tensor(tokens[:longest])


def describe(model: Any) -> dict[str, Any]:
    """Return name and size of a model, for the result."""
    return {
        "name": model.config._name_or_path or "a small model with random weights",
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "layers": model.config.num_hidden_layers,
        "heads": model.config.num_attention_heads,
    }


def plan(model: Any, tokens: Tensor, settings: Settings) -> dict[str, Step]:
    """Return the steps of the benchmark, by name.

    Args:
        model: The model.
        tokens: A text, at least as long as the longest input.
        settings: How to time it.

    Returns:
        One step per workload and number of threads, then two for memory. A step raises
        AssertionError if a diagnosis differs from the weights of eager attention.
    """
    steps: dict[str, Step] = {}
    for threads in settings.threads:
        for workload in ("diagnose", "weights", "prefill", "decode"):
            name = f"{workload}, {threads} thread{'s'[: threads > 1]}"
            steps[name] = partial(_time, workload, model, tokens, settings, threads)
    steps["memory of the model"] = partial(_memory, model, settings)
    steps["memory of a small model"] = partial(_memory, None, settings)
    return steps


def _time(
    workload: str, model: Any, tokens: Tensor, settings: Settings, threads: int
) -> dict[str, list[dict[str, Any]]]:
    lengths = {"diagnose": settings.diagnosed, "weights": settings.shown}
    length = lengths.get(workload, settings.prefill)
    with thread_count(threads), _calls(workload, model, tokens[:length], settings) as calls:
        method, baseline = calls
        timing = interleave(
            calls, baseline=baseline, seconds=settings.seconds, least=settings.least
        )
    processed = settings.decoded if workload == "decode" else length
    # A small model has no targets: its passes are so cheap that the cost of calls dominates.
    judged = TARGETS.get(workload) if settings.model is not None else None
    bound, target = judged or (None, None)
    record = {
        "workload": workload,
        "method": method,
        "baseline": baseline,
        "length": length,
        "threads": threads,
        "seconds": timing.best[method],
        "baseline_seconds": timing.best[baseline],
        "tokens_per_second": processed / timing.best[method],
        "baseline_tokens_per_second": processed / timing.best[baseline],
        "rounds": timing.rounds[method],
        "ratio": timing.ratio(method),
        "bound": bound,
        "target": target,
    }
    return {"records": [record]}


@contextmanager
def _calls(
    workload: str, model: Any, tokens: Tensor, settings: Settings
) -> Iterator[dict[str, Call]]:
    """Prepare the method of a workload and its baseline, in this order."""
    plain = passes(model, tokens)
    if workload == "diagnose":
        yield {name: plain[name] for name in ("diagnose", "forward")}
        return
    other = twin(model)
    if workload == "weights":
        other.set_attn_implementation("eager")
        showing = passes(other, tokens)["output_attentions"]
        _check(model, showing().attentions, tokens)
        yield {"diagnose": plain["diagnose"], "output_attentions": showing}
        return
    with sharpen(other, POLICY):
        if workload == "prefill":
            yield {"sharpened": passes(other, tokens)["forward"], "stock": plain["forward"]}
        else:
            yield {
                "sharpened": decoding(other, tokens, settings.decoded),
                "stock": decoding(model, tokens, settings.decoded),
            }


def _check(model: Any, weights: Any, tokens: Tensor) -> None:
    """Compare the entropies of a diagnosis with those of the weights of eager attention."""
    measured = diagnose(model, tokens, halved(len(tokens)))
    for head in measured.heads:
        rows = weights[head.layer][0, head.head, -min(measured.rows, len(tokens) // 2) :]
        expected = float(-torch.special.xlogy(rows, rows).sum(-1).mean())
        got = measured.record(head).entropy
        if got is None or not abs(got.mean - expected) < TOLERANCE:
            raise AssertionError(
                f"layer {head.layer}, head {head.head}: the diagnosis has an entropy of"
                f" {None if got is None else got.mean}, the weights have {expected}"
            )


def _memory(model: Any | None, settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Measure the memory of the model by every method, or of a small one as its input grows."""
    threads = settings.threads[-1]
    name, cases = (
        ("small model", [("diagnose", length) for length in settings.memory])
        if model is None
        else ("model", [(each, settings.shown) for each in passes(model, torch.empty(0))])
    )
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        saved = small_model(max(settings.memory)) if model is None else model
        saved.save_pretrained(Path(folder))
        # Most of the time goes into starting the processes, so two start at once.
        found = list(
            pool.map(
                lambda case: measure_apart(extra_memory, case[0], folder, case[1], threads), cases
            )
        )
    entries = [
        {"model": name, "method": method, "length": length, "threads": threads}
        | {"mebibytes": extra / 2**20}
        for (method, length), extra in zip(cases, found, strict=True)
        if extra is not None
    ]
    return {"memory": entries}
