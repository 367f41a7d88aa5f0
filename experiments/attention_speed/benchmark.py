"""The attention benchmark: what `sharpmax.attention` costs, as a ratio to PyTorch's own attention.

Works over the same inputs are timed in turn with one another and with
`scaled_dot_product_attention` on these inputs. The kernels are those of `impl="cpu"`, by name: on a
machine that cannot have them the benchmark says so, rather than measure something else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.attention_speed import memory as attention_memory
from experiments.attention_speed import peers as attention_peers
from experiments.attention_speed.inputs import Examined, Inputs, examine, make_inputs
from experiments.attention_speed.works import COMPILED, OWN, POLICIES, Work
from experiments.common.timing import Timing, interleave, thread_count
from sharpmax import _files as results
from sharpmax._attention import attention, attention_statistics

__all__ = ["OURS", "PEER", "QUICK", "Settings", "run", "steps"]

PEER = "scaled_dot_product_attention"
OURS = "sharpmax cpu"

TEXTBOOK_TARGET, TEXTBOOK_LENGTH = 8.0, 4096
"""So many times as long as sharpmax the textbook version takes at least, at so many keys."""

GROWTH_TARGET, GROWTH_LENGTHS = 1.3, (8192, 131072)
"""There is no cliff: the ratio at the longer is at most so many times that at the shorter."""

MEMORY_TARGET, MEMORY_LENGTH = 8.0, 16384
"""At most so many MiB a thread at so many keys; in proportion at others."""

SHARP_WEIGHT = 0.99
"""What one key holds, at least, of each sharp row after sharpening."""

TOLERANCE = 0.02
"""Of outputs, against the mathematics in single precision too, where logits of some ten are made
up to a hundred times as large. It finds mistakes; how exact the kernels are, the tests say."""


@dataclass(frozen=True)
class Settings:
    """How a run is done.

    Attributes:
        threads: Numbers of threads, each of which is timed.
        seconds: Time that each callable may use, as `interleave` says.
        least: How often each is timed at least.
        seed: Of the inputs.
        memory_lengths: Numbers of keys at which memory is measured.
    """

    threads: tuple[int, ...] = (1, 2)
    seconds: float = 0.6
    least: int = 3
    seed: int = 0
    memory_lengths: tuple[int, ...] = (MEMORY_LENGTH, 2 * MEMORY_LENGTH)


QUICK = Settings(threads=(1,), seconds=0.05, memory_lengths=(1024,))
"""Of a run that shows that all works; its times are not worth much."""


def steps(works: Sequence[Work], settings: Settings) -> int:
    """How many times `run` reports progress.

    Args:
        works: What to time.
        settings: How.

    Returns:
        The number.
    """
    timed = len(list(itertools.groupby(works, key=lambda work: work.inputs)))
    measured = len(settings.memory_lengths) * len(attention_memory.IMPLEMENTATIONS)
    return (timed + measured) * len(settings.threads)


def run(
    works: Sequence[Work],
    settings: Settings | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run works and give what was measured.

    Before it is timed, each way is checked against the mathematics on a sample of rows.

    Args:
        works: What to time.
        settings: How; None takes the defaults.
        progress: Called with a line before each step, `steps` times in all.

    Returns:
        Plain data, ready for JSON: versions, machine, settings, a record for each work and number
        of threads, the growth of the curve, the memory.

    Raises:
        NotImplementedError: The CPU kernels cannot be had; the message says why.
        MissingExtraError: A package that is compared with is not installed.
        AssertionError: A way does not give what the mathematics gives.
    """
    settings = Settings() if settings is None else settings
    records: list[dict[str, Any]] = []
    for _, same_inputs in itertools.groupby(works, key=lambda work: work.inputs):
        records += _run_in_turn(list(same_inputs), settings, progress)
    return {
        "experiment": "attention benchmark",
        "versions": results.versions(["numpy", "torch", "entmax"]),
        "machine": results.machine()
        | {"vector_extension": torch.backends.cpu.get_cpu_capability()},
        "settings": asdict(settings)
        | {
            "dtype": "float32",
            "policies": {
                character: {name: policy.to_dict() for name, policy in by_name.items()}
                for character, by_name in POLICIES.items()
            },
        },
        "records": records,
        "growth": _growth(records),
        "memory": _memory(settings, progress),
    }


def _run_in_turn(
    works: Sequence[Work], settings: Settings, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Records of works over the same inputs, for every number of threads."""
    first = works[0]
    inputs = make_inputs(
        first.character,
        queries=first.queries,
        keys=first.length,
        width=first.width,
        heads=first.heads,
        key_heads=first.key_heads,
        is_causal=first.is_causal,
        seed=settings.seed,
    )
    examined = {
        work: examine(inputs, POLICIES[work.character][work.policy])
        for work in works
        if work.policy is not None
    }
    for work, rows in examined.items():
        if work.character == "sharp" and rows.largest_weight < SHARP_WEIGHT:
            raise AssertionError(
                f"{work.name}: expected rows in which one key holds {SHARP_WEIGHT:.0%},"
                f" got {rows.largest_weight:.3%}"
            )
    records: list[dict[str, Any]] = []
    groups = ", ".join(dict.fromkeys(work.group for work in works))
    mask = "causal" if first.is_causal else "full"
    for threads in settings.threads:
        progress(
            f"{groups}: {first.queries:,} x {first.length:,}, width {first.width}, {mask},"
            f" {threads} thread{'s'[: threads > 1]}"
        )
        with thread_count(threads):
            # Checked once: what they give does not depend on the threads.
            to_check = examined if threads == settings.threads[0] else {}
            timing = _time(works, inputs, to_check, settings)
        for work in works:
            records.append(_record(work, timing, threads, examined.get(work)))
            if work.way == "textbook" and work.length == TEXTBOOK_LENGTH:
                records.append(_against_ours(work, works, timing, records[-1]))
    return records


def _time(
    works: Sequence[Work], inputs: Inputs, to_check: dict[Work, Examined], settings: Settings
) -> Timing:
    """Time works over the same inputs, and the peer; some are checked before."""
    backward = works[0].way == "forward and backward"
    if any(work.way in COMPILED for work in works):
        # Compiled code is made for a number of threads.
        torch.compiler.reset()
    tensors = tuple(
        tensor.detach().requires_grad_(backward)
        for tensor in (inputs.query, inputs.key, inputs.value)
    )
    upstream = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(1))

    def peer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=inputs.is_causal, enable_gqa=inputs.group > 1
        )

    def on_inputs(function: Callable[..., Any]) -> Callable[[], object]:
        if not backward:
            return lambda: function(*tensors)
        return lambda: torch.autograd.grad(function(*tensors), tensors, upstream)

    callables = {PEER: on_inputs(peer)}
    with torch.set_grad_enabled(backward):
        for work in works:
            function = _function(work, inputs)
            if work in to_check:
                _check_output(work, function(*tensors).detach(), to_check[work])
            callables[work.name] = on_inputs(function)
        return interleave(callables, peer=PEER, seconds=settings.seconds, least=settings.least)


def _function(work: Work, inputs: Inputs) -> Callable[..., Any]:
    """The function of query, key and value that a work times."""
    shape: dict[str, Any] = {"is_causal": work.is_causal, "enable_gqa": inputs.group > 1}
    if work.way == "statistics":
        return lambda query, key, _: attention_statistics(query, key, **shape, impl="cpu")
    if work.way == "entmax by bisection":
        return attention_peers.entmax_attention
    if work.way == "textbook":
        return partial(attention_peers.textbook_attention, is_causal=work.is_causal)
    if work.way == "textbook, compiled":
        return torch.compile(attention_peers.textbook_attention, fullgraph=True, dynamic=False)
    assert work.policy is not None
    policy = POLICIES[work.character][work.policy]
    if work.way == "FlexAttention, compiled, second pass":
        return attention_peers.flex_second_pass(inputs.query, inputs.key, policy)
    return lambda query, key, value: attention(
        query, key, value, policy=policy, **shape, detach_temperature=True, impl="cpu"
    )


def _check_output(work: Work, output: Tensor, examined: Examined) -> None:
    """A time of a wrong result would be worth nothing."""
    difference = (output[:, :, list(examined.rows)] - examined.output).abs().max().item()
    if not difference < TOLERANCE:
        raise AssertionError(f"{work.name}: differs from the mathematics by {difference:.2g}")


def _record(work: Work, timing: Timing, threads: int, examined: Examined | None) -> dict[str, Any]:
    ratio = timing.ratio(work.name)
    return {
        "work": work.group,
        "implementation": OURS if work.way in OWN else work.way,
        "peer": PEER,
        "length": work.length,
        "queries": work.queries,
        "width": work.width,
        "causal": work.is_causal,
        "heads": work.heads,
        "key_heads": work.key_heads,
        "policy": work.policy,
        "rows": work.character,
        "threads": threads,
        "seconds": timing.best[work.name],
        "peer_seconds": timing.best[PEER],
        "rounds": timing.rounds[work.name],
        "ratio": ratio,
        "bound": "at most",
        "target": work.target,
        "aim": work.aim,
        "reached": None if work.target is None else ratio <= work.target,
        "entropy": None if examined is None else examined.entropy,
        "inverse_temperature": None if examined is None else examined.inverse_temperature,
        "least_largest_weight": None if examined is None else examined.largest_weight,
    }


def _against_ours(
    work: Work, works: Sequence[Work], timing: Timing, record: dict[str, Any]
) -> dict[str, Any]:
    """The record of the textbook version once more, as a ratio to sharpmax in the same run."""
    ours = next(other.name for other in works if other.way == "forward")
    ratio = timing.ratio(work.name, to=ours)
    return record | {
        "peer": OURS,
        "peer_seconds": timing.best[ours],
        "ratio": ratio,
        "bound": "at least",
        "target": TEXTBOOK_TARGET,
        "reached": ratio >= TEXTBOOK_TARGET,
    }


def _growth(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the ratio of the curve has grown between the two lengths that the target names."""
    ratios = {
        (record["threads"], record["length"]): record["ratio"]
        for record in records
        if record["work"] == "curve"
    }
    shorter, longer = GROWTH_LENGTHS
    made = []
    for threads in sorted({threads for threads, length in ratios if length == longer}):
        if (threads, shorter) in ratios:
            growth = ratios[threads, longer] / ratios[threads, shorter]
            made.append(
                {
                    "threads": threads,
                    "from_length": shorter,
                    "to_length": longer,
                    "growth": growth,
                    "target": GROWTH_TARGET,
                    "reached": growth <= GROWTH_TARGET,
                }
            )
    return made


def _memory(settings: Settings, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    made = []
    for length, threads, implementation in itertools.product(
        settings.memory_lengths, settings.threads, attention_memory.IMPLEMENTATIONS
    ):
        ours = implementation == "sharpmax"
        name = OURS if ours else PEER
        progress(f"memory: {name}, {length:,} keys, {threads} thread{'s'[: threads > 1]}")
        extra = attention_memory.extra_memory(
            implementation, length=length, width=64, heads=1, threads=threads
        )
        if extra is None:
            continue
        mebibytes = extra / 2**20 / threads
        target = MEMORY_TARGET * length / MEMORY_LENGTH if ours else None
        made.append(
            {
                "implementation": name,
                "length": length,
                "width": 64,
                "threads": threads,
                "mebibytes_a_thread": mebibytes,
                "target": target,
                "reached": None if target is None else mebibytes <= target,
            }
        )
    return made
