"""The benchmark of models: what diagnosing and sharpening a model cost beside running it.

Ways over the same weights and tokens are timed in turn. The model is SmolLM2-135M-Instruct, or a
small one with random weights for a quick run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from experiments.common.timing import Timing, interleave, thread_count
from experiments.models_speed import memory as models_memory
from experiments.models_speed.works import Call, decoding, halved, small_model, twin, ways_to_pass
from sharpmax import _files as results
from sharpmax.models import diagnose, load_model, sharpen
from sharpmax.policies import Exponential
from sharpmax.tasks import own_source

__all__ = ["QUICK", "Settings", "run", "steps"]

LARGEST_TIME = {"diagnose": 1.3}
"""Time over that of the peer, at most, by work."""

LEAST_SPEED = {"prefill": 0.9, "decode": 0.95}
"""Tokens a second over those of the peer, at least, by work."""

LINEAR_TARGET = 1.1
"""Memory a token at the longest length is at most so many times that at the shortest."""

POLICY = Exponential(3.0)
"""In all heads. Its parameter does not change what it costs."""

TOLERANCE = 0.01
"""Nats between the entropies of a diagnosis and those of the weights that eager attention shows."""


@dataclass(frozen=True)
class Settings:
    """How a run is done.

    Attributes:
        model: As `sharpmax.models.load_model` takes it; None is a small one with random weights.
        threads: Numbers of threads, each of which is timed.
        diagnosed: Tokens of the diagnosis that is compared with a plain pass.
        shown: Tokens of that which is compared with a pass that shows all weights.
        prefill: Tokens of a sharpened pass, and of the context that is decoded behind.
        decoded: Tokens that are decoded at a time.
        memory: Numbers of tokens at which the memory of a diagnosis is measured.
        seconds: Time that each callable may use, as `interleave` says.
        least: How often each is timed at least.
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
"""Of a run that shows that all works; its times are not worth much."""


def steps(settings: Settings) -> int:
    """How many times `run` reports progress."""
    return 1 + len(settings.threads) * 4 + len(models_memory.WAYS) + len(settings.memory)


def run(settings: Settings, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Time a model and measure its memory.

    Args:
        settings: How.
        progress: Called with a line before each step, `steps` times in all.

    Returns:
        Plain data, ready for JSON: versions, machine, settings, a record for each work and number
        of threads, the memory, and how it grows.

    Raises:
        CannotLoadError: The model is not there.
        AssertionError: A diagnosis does not agree with the weights that eager attention shows.
    """
    progress(f"loading {settings.model or 'a small model'}")
    model, tokens = _model(settings)
    records: list[dict[str, Any]] = []
    for threads in settings.threads:
        with thread_count(threads):
            records += _passes(model, tokens, settings, threads, progress)
            records += _sharpened(model, tokens, settings, threads, progress)
    memory = _memory(model, settings, progress)
    return {
        "experiment": "benchmark of models",
        "versions": results.versions(["numpy", "torch", "transformers"]),
        "machine": results.machine()
        | {"vector_extension": torch.backends.cpu.get_cpu_capability()},
        "model": {
            "name": model.config._name_or_path or "a small model with random weights",
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": model.config._attn_implementation,
            "layers": model.config.num_hidden_layers,
            "heads": model.config.num_attention_heads,
        },
        "settings": asdict(settings) | {"policy": POLICY.to_dict()},
        "records": records,
        "memory": memory,
        "growth": _growth(memory),
    }


def _model(settings: Settings) -> tuple[Any, Tensor]:
    """The model, and tokens of a text."""
    longest = max(settings.diagnosed, settings.shown, settings.prefill)
    if settings.model is None:
        model, tokens = small_model(longest + settings.decoded), list(own_source().encode())
    else:
        model, tokenizer = load_model(settings.model)
        tokens = tokenizer(own_source(), verbose=False)["input_ids"]
    return model, torch.tensor(tokens[:longest])


def _passes(
    model: Any,
    tokens: Tensor,
    settings: Settings,
    threads: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A diagnosis beside a plain pass, and beside one that shows all weights."""
    progress(_line("diagnose and a plain pass", settings.diagnosed, threads))
    ways = ways_to_pass(model, tokens[: settings.diagnosed])
    plain = {name: ways[name] for name in ("diagnose", "forward")}
    timing = _timed(plain, "forward", settings)
    records = [_record("diagnose", "diagnose", timing, settings, settings.diagnosed, threads)]

    progress(_line("diagnose and output_attentions", settings.shown, threads))
    shown = tokens[: settings.shown]
    showing = twin(model)
    showing.set_attn_implementation("eager")
    _check(model, showing, shown)
    both = {
        "diagnose": ways_to_pass(model, shown)["diagnose"],
        "output_attentions": ways_to_pass(showing, shown)["output_attentions"],
    }
    timing = _timed(both, "output_attentions", settings)
    return [*records, _record("weights", "diagnose", timing, settings, settings.shown, threads)]


def _sharpened(
    model: Any,
    tokens: Tensor,
    settings: Settings,
    threads: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A sharpened model beside the same one with PyTorch's own attention."""
    tokens = tokens[: settings.prefill]
    other = twin(model)
    with sharpen(other, POLICY):
        progress(_line("prefill, sharpened and not", settings.prefill, threads))
        ways = {
            "sharpened": ways_to_pass(other, tokens)["forward"],
            "stock": ways_to_pass(model, tokens)["forward"],
        }
        timing = _timed(ways, "stock", settings)
        records = [_record("prefill", "sharpened", timing, settings, settings.prefill, threads)]

        progress(_line("decode, sharpened and not", settings.prefill, threads))
        ways = {
            name: decoding(each, tokens, settings.decoded)
            for name, each in (("sharpened", other), ("stock", model))
        }
        timing = _timed(ways, "stock", settings)
    record = _record("decode", "sharpened", timing, settings, settings.prefill, threads)
    return [*records, record]


def _timed(ways: Mapping[str, Call], peer: str, settings: Settings) -> Timing:
    return interleave(ways, peer=peer, seconds=settings.seconds, least=settings.least)


def _record(
    work: str, way: str, timing: Timing, settings: Settings, length: int, threads: int
) -> dict[str, Any]:
    ratio = timing.ratio(way)
    tokens = settings.decoded if work == "decode" else length
    return {
        "work": work,
        "way": way,
        "peer": timing.peer,
        "length": length,
        "threads": threads,
        "seconds": timing.best[way],
        "peer_seconds": timing.best[timing.peer],
        "tokens_a_second": tokens / timing.best[way],
        "peer_tokens_a_second": tokens / timing.best[timing.peer],
        "rounds": timing.rounds[way],
        "ratio": ratio,
        "speed": 1.0 / ratio,
        **_judged(work if settings.model is not None else None, ratio),
    }


def _judged(work: str | None, ratio: float) -> dict[str, Any]:
    """What was to be reached, and whether it was; nothing for a work without a target.

    A small model has none: its passes are so cheap that calls outweigh them.
    """
    if work in LARGEST_TIME:
        target = LARGEST_TIME[work]
        return {"bound": "at most", "target": target, "reached": ratio <= target}
    if work in LEAST_SPEED:
        target = LEAST_SPEED[work]
        return {"bound": "at least", "target": target, "reached": 1.0 / ratio >= target}
    return {"bound": None, "target": None, "reached": None}


def _check(model: Any, showing: Any, tokens: Tensor) -> None:
    """A time of a wrong result would be worth nothing."""
    measured = diagnose(model, tokens, halved(len(tokens)))
    with torch.no_grad():
        weights = showing.base_model(
            input_ids=tokens[None], use_cache=False, output_attentions=True
        ).attentions
    for head in measured.heads:
        rows = weights[head.layer][0, head.head, -min(measured.rows, len(tokens) // 2) :]
        expected = float(-torch.special.xlogy(rows, rows).sum(-1).mean())
        got = measured.record(head).entropy
        if got is None or not abs(got.mean - expected) < TOLERANCE:
            raise AssertionError(
                f"layer {head.layer}, head {head.head}: the diagnosis has an entropy of"
                f" {None if got is None else got.mean}, the weights have {expected}"
            )


def _memory(
    model: Any, settings: Settings, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Of the model in all ways, and of a small one as its inputs grow."""
    threads = settings.threads[-1]
    made: list[dict[str, Any]] = []

    def measure(name: str, way: str, folder: Path, length: int) -> None:
        progress(_line(f"memory of {way}", length, threads))
        extra = models_memory.extra_memory(way, folder, length=length, threads=threads)
        if extra is not None:
            made.append(
                {"model": name, "way": way, "length": length, "threads": threads}
                | {"mebibytes": extra / 2**20}
            )

    with TemporaryDirectory() as folder:
        place = Path(folder)
        model.save_pretrained(place / "model")
        small_model(max(settings.memory)).save_pretrained(place / "small")
        for way in models_memory.WAYS:
            measure("the model", way, place / "model", settings.shown)
        for length in settings.memory:
            measure("a small model", "diagnose", place / "small", length)
    return made


def _growth(memory: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How memory a token changes from the shortest length to the longest; 1 is linear."""
    small = [entry for entry in memory if entry["model"] == "a small model"]
    if len(small) < 2:
        return None
    a_token = [entry["mebibytes"] / entry["length"] for entry in (small[0], small[-1])]
    growth = a_token[1] / a_token[0] if a_token[0] else 1.0
    return {
        "from_length": small[0]["length"],
        "to_length": small[-1]["length"],
        "growth": growth,
        "target": LINEAR_TARGET,
        "reached": growth <= LINEAR_TARGET,
    }


def _line(what: str, length: int, threads: int) -> str:
    return f"{what}: {length:,} tokens, {threads} thread{'s'[: threads > 1]}"
