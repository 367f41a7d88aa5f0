"""The attention benchmark: what `sharpmax.attention` costs, as a ratio to PyTorch's own attention.

Every work is a small record. Works over the same inputs are timed in turn with one another and
with `scaled_dot_product_attention` on these inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpmax._attention import attention, attention_statistics
from sharpmax.lab import attention_memory, attention_peers, results
from sharpmax.lab.attention_inputs import Character, Examined, Inputs, examine, make_inputs
from sharpmax.lab.timing import Timing, interleave, thread_count
from sharpmax.policies import EntropyTarget, Exponential, Identity, Paper, Policy

__all__ = [
    "GROUPS",
    "PEER",
    "Settings",
    "Work",
    "full_works",
    "quick_works",
    "run",
    "steps",
]

PEER = "scaled_dot_product_attention"
OURS = "sharpmax"

Way = Literal[
    "forward",
    "statistics",
    "forward and backward",
    "textbook",
    "textbook, compiled",
    "FlexAttention, compiled, second pass",
    "entmax by bisection",
]
"""What is timed; the first three are sharpmax's own."""

COMPILED: tuple[Way, ...] = ("textbook, compiled", "FlexAttention, compiled, second pass")

GROUPS = {
    "prefill": "prefill",
    "sharp": "prefill, sharp rows",
    "decode": "decode, one query",
    "statistics": "statistics alone",
    "entropy-target": "EntropyTarget",
    "backward": "forward and backward",
    "curve": "256 queries against n keys",
    "comparison": "what else there is",
    "memory": "extra memory",
}
"""Kinds of work, with what tables call them."""

TARGETS: dict[str, tuple[float, float]] = {
    "prefill": (1.25, 1.0),
    "sharp": (1.0, 0.7),
    "decode": (1.05, 0.8),
    "statistics": (0.8, 0.6),
    "entropy-target": (2.0, 1.5),
    "backward": (1.5, 1.1),
}
"""The ratio to reach and the one to aim at, for works that have them."""

TEXTBOOK_TARGET = 8.0
"""So many times as long as sharpmax the textbook version takes at least."""

GROWTH_TARGET = 1.3
GROWTH_LENGTHS = (8192, 131072)
"""The ratio at the longer is at most so many times that at the shorter: there is no cliff."""

MEMORY_TARGET = 8.0
MEMORY_LENGTH = 16384
"""MiB a thread at this many keys; in proportion at others."""

SHARP_WEIGHT = 0.99
"""What one key holds of each sharp row after sharpening."""

POLICIES: dict[Character, dict[str, Policy]] = {
    "dispersed": {
        "Identity": Identity(),
        "Paper": Paper(warn=False),
        "Exponential": Exponential(reference=4.5),
        "EntropyTarget": EntropyTarget(target=3.5),
    },
    "sharp": {"Paper": Paper(warn=False), "Exponential": Exponential(reference=1.0)},
}
"""Set so that they act on the rows of such inputs."""


@dataclass(frozen=True)
class Work:
    """One thing to time.

    Attributes:
        group: One of `GROUPS`.
        way: What is done.
        length: Number of keys.
        queries: Number of queries.
        width: Of queries, keys and values.
        is_causal: Query i sees keys up to i.
        heads: Number of query heads.
        key_heads: Number of key heads.
        policy: Name of a policy; "none" where there is none.
        character: What the rows of the inputs are like.
        target: Ratio to the peer to reach, or None.
        aim: Ratio to aim at, or None.
    """

    group: str
    way: Way
    length: int
    queries: int
    width: int
    is_causal: bool
    heads: int
    key_heads: int
    policy: str
    character: Character = "dispersed"
    target: float | None = None
    aim: float | None = None

    @property
    def name(self) -> str:
        """What sets it apart from the others, in one line."""
        mask = "causal" if self.is_causal else "full"
        parts = [GROUPS[self.group], f"{self.queries}x{self.length}x{self.width}", mask]
        if self.way not in ("forward", "statistics", "forward and backward"):
            parts.append(self.way)
        return ", ".join([*parts, self.policy] if self.policy != "none" else parts)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What decides the inputs and the peer: works that agree in this are timed in turn."""
        kind = "comparison" if self.group == "comparison" else ""
        return (
            self.character,
            self.queries,
            self.length,
            self.width,
            self.heads,
            self.key_heads,
            self.is_causal,
            self.way == "forward and backward",
            kind,
        )


@dataclass(frozen=True)
class Settings:
    """How a run is done.

    Attributes:
        threads: Numbers of threads, each of which is timed.
        seconds: Time that each callable may use, as `interleave` says.
        least: How often each is timed at least.
        seed: Of the inputs.
        memory_lengths: At which memory is measured.
    """

    threads: tuple[int, ...] = (1, 2)
    seconds: float = 0.6
    least: int = 3
    seed: int = 0
    memory_lengths: tuple[int, ...] = (MEMORY_LENGTH, 2 * MEMORY_LENGTH)


def _prefill(
    lengths: Iterable[int], widths: Sequence[int], solve_lengths: Sequence[int]
) -> Iterator[Work]:
    """Prefill over dispersed rows, with statistics and EntropyTarget on the same inputs."""
    for length, width, is_causal in itertools.product(lengths, widths, (True, False)):
        heads = 2 if length <= 4096 else 1
        for group, way, policy in (
            ("prefill", "forward", "Paper"),
            ("prefill", "forward", "Exponential"),
            ("statistics", "statistics", "none"),
            ("entropy-target", "forward", "EntropyTarget"),
        ):
            if group in ("prefill", "statistics") or length in solve_lengths:
                yield _own(group, way, length, length, width, is_causal, heads, heads, policy)  # type: ignore[arg-type]


def _own(
    group: str,
    way: Way,
    length: int,
    queries: int,
    width: int,
    is_causal: bool,
    heads: int,
    key_heads: int,
    policy: str,
    character: Character = "dispersed",
) -> Work:
    target, aim = TARGETS.get(group, (None, None))
    return Work(
        group,
        way,
        length,
        queries,
        width,
        is_causal,
        heads,
        key_heads,
        policy,
        character,
        target,
        aim,
    )


def _sharp(lengths: Iterable[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width, is_causal in itertools.product(lengths, widths, (True, False)):
        heads = 2 if length <= 4096 else 1
        for policy in POLICIES["sharp"]:
            yield _own(
                "sharp", "forward", length, length, width, is_causal, heads, heads, policy, "sharp"
            )


def _decode(lengths: Iterable[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width in itertools.product(lengths, widths):
        for policy in ("Paper", "Exponential"):
            yield _own("decode", "forward", length, 1, width, False, 32, 8, policy)


def _backward(lengths: Iterable[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width, is_causal in itertools.product(lengths, widths, (True, False)):
        for policy in ("Paper", "Exponential"):
            yield _own(
                "backward", "forward and backward", length, length, width, is_causal, 2, 2, policy
            )


def _curve(lengths: Iterable[int]) -> Iterator[Work]:
    for length in lengths:
        # As many rows at every length, and few, so that the longest can be afforded.
        yield _own("curve", "forward", length, 256, 64, False, 4, 4, "Exponential")


def _comparison(length: int) -> Iterator[Work]:
    ways: tuple[tuple[Way, str], ...] = (
        ("forward", "Paper"),
        ("textbook", "Paper"),
        ("textbook, compiled", "Paper"),
        ("FlexAttention, compiled, second pass", "Paper"),
        ("entmax by bisection", "none"),
    )
    for way, policy in ways:
        yield Work("comparison", way, length, length, 64, False, 1, 1, policy)


def full_works() -> list[Work]:
    """All the works, in the order in which they run.

    Example:
        >>> sorted({work.length for work in full_works() if work.group == "prefill"})
        [1024, 4096, 8192, 16384]
    """
    lengths = (1024, 4096, 8192, 16384)
    return [
        *_prefill(lengths, (64, 128), solve_lengths=lengths),
        *_sharp(lengths, (64, 128)),
        *_decode((4096, 32768, 131072), (64, 128)),
        *_backward((1024, 4096), (64, 128)),
        *_curve([1024 * 2**power for power in range(8)]),
        *_comparison(4096),
    ]


def quick_works() -> list[Work]:
    """Some of each kind, small, and nothing that has to be compiled by PyTorch first.

    Example:
        >>> {work.group for work in quick_works()} == set(GROUPS) - {"memory"}
        True
    """
    works = [
        *_prefill((512, 1024), (64,), solve_lengths=(512,)),
        *_sharp((512,), (64,)),
        *_decode((4096,), (64,)),
        *_backward((512,), (64,)),
        *_curve((1024, 8192, 131072)),
        *_comparison(512),
    ]
    return [work for work in works if work.way not in COMPILED]


def steps(works: Sequence[Work], settings: Settings, *, memory: bool) -> int:
    """How many times `run` will report progress.

    Args:
        works: What to time.
        settings: How.
        memory: Whether memory is measured too.
    """
    timed = len(list(itertools.groupby(works, key=lambda work: work.inputs)))
    measured = len(settings.memory_lengths) * len(attention_memory.IMPLEMENTATIONS) if memory else 0
    return (timed + measured) * len(settings.threads)


def run(
    works: Sequence[Work],
    settings: Settings | None = None,
    *,
    memory: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run works and give what was measured.

    Before it is timed, each way is checked against the mathematics on a sample of rows.

    Args:
        works: What to time.
        settings: How; None takes the defaults.
        memory: Measure extra memory too.
        progress: Called with a line before each step, `steps` times in all.

    Returns:
        Plain data, ready for JSON: versions, machine, settings, a record for each work and number
        of threads, the growth of the curve, the memory.

    Raises:
        NotImplementedError: The CPU kernels cannot be had; the message says why.
        MissingExtra: A package that is compared with is not installed.
        AssertionError: A way does not give what the mathematics gives.
    """
    settings = Settings() if settings is None else settings
    records: list[dict[str, Any]] = []
    for _, group in itertools.groupby(works, key=lambda work: work.inputs):
        together = list(group)
        inputs = _inputs(together[0], settings.seed)
        examined = {
            work: examine(inputs, POLICIES[work.character][work.policy])
            for work in together
            if work.policy != "none"
        }
        _check_sharpness(examined)
        for threads in settings.threads:
            names = ", ".join(dict.fromkeys(work.group for work in together))
            first = together[0]
            progress(
                f"{names}: {first.queries:,} x {first.length:,}, width {first.width},"
                f" {'causal' if first.is_causal else 'full'}, {_count(threads, 'thread')}"
            )
            with thread_count(threads):
                timing = _time(together, inputs, examined, settings)
            records += [
                _record(work, timing, threads, examined.get(work))
                for work in together
                if work.way != "forward" or work.policy != "none"
            ]
            records += _textbook_records(together, timing, threads)
        # A cache of 128k keys is a gigabyte: freed before the next is drawn.
        del inputs
    return {
        "experiment": "attention benchmark",
        "versions": results.versions(["numpy", "torch", "entmax"]),
        "machine": results.machine()
        | {"vector_extension": torch.backends.cpu.get_cpu_capability()},
        "settings": asdict(replace(settings))
        | {
            "dtype": "float32",
            "policies": {
                character: {name: policy.to_dict() for name, policy in by_name.items()}
                for character, by_name in POLICIES.items()
            },
        },
        "records": records,
        "growth": _growth(records),
        "memory": _memory(settings, progress) if memory else [],
    }


def _inputs(work: Work, seed: int) -> Inputs:
    return make_inputs(
        work.character,
        queries=work.queries,
        keys=work.length,
        width=work.width,
        heads=work.heads,
        key_heads=work.key_heads,
        is_causal=work.is_causal,
        seed=seed,
    )


def _check_sharpness(examined: dict[Work, Examined]) -> None:
    for work, rows in examined.items():
        if work.character == "sharp" and rows.largest_weight < SHARP_WEIGHT:
            raise AssertionError(
                f"{work.name}: expected rows in which one key holds {SHARP_WEIGHT:.0%},"
                f" got {rows.largest_weight:.3%}"
            )


def _time(
    works: Sequence[Work], inputs: Inputs, examined: dict[Work, Examined], settings: Settings
) -> Timing:
    """Time works over the same inputs, and the peer."""
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

    def wrapped(function: Callable[..., Any]) -> Callable[[], object]:
        if not backward:
            return lambda: function(*tensors)
        return lambda: torch.autograd.grad(function(*tensors), tensors, upstream)

    callables = {PEER: wrapped(peer)}
    with torch.set_grad_enabled(backward):
        for work in works:
            function = _function(work, inputs)
            if work in examined and work.way != "statistics":
                _check_output(work, function(*tensors).detach(), examined[work])
            callables[work.name] = wrapped(function)
        return interleave(callables, peer=PEER, seconds=settings.seconds, least=settings.least)


def _function(work: Work, inputs: Inputs) -> Callable[..., Any]:
    """The function of query, key and value that a work times."""
    gqa = work.heads != work.key_heads
    match work.way:
        case "statistics":
            return lambda query, key, _: attention_statistics(
                query, key, is_causal=work.is_causal, enable_gqa=gqa, impl="cpu"
            )
        case "textbook":
            return attention_peers.textbook_attention
        case "textbook, compiled":
            return torch.compile(attention_peers.textbook_attention, fullgraph=True, dynamic=False)
        case "FlexAttention, compiled, second pass":
            policy = POLICIES[work.character][work.policy]
            second_pass = attention_peers.flex_second_pass(
                inputs.query, inputs.key, inputs.value, policy
            )
            return lambda *_: second_pass()
        case "entmax by bisection":
            return attention_peers.entmax_attention
    return lambda query, key, value: attention(
        query,
        key,
        value,
        policy=POLICIES[work.character][work.policy],
        is_causal=work.is_causal,
        enable_gqa=gqa,
        impl="cpu",
        detach_temperature=True,
    )


def _check_output(work: Work, output: Tensor, examined: Examined) -> None:
    """A time of a wrong result would be worth nothing. How exact it is, the tests say."""
    difference = (output[:, :, list(examined.rows)] - examined.output).abs().max().item()
    # Single precision, with logits that beta has made up to a hundred times as large.
    if not difference < 0.02:
        raise AssertionError(f"{work.name}: differs from the mathematics by {difference:.2e}")


def _record(
    work: Work, timing: Timing, threads: int, examined: Examined | None, peer: str = PEER
) -> dict[str, Any]:
    ratio = timing.ratio(work.name, to=peer)
    own = work.way in ("forward", "statistics", "forward and backward")
    return {
        "work": work.group,
        "way": work.way,
        "implementation": f"{OURS} cpu" if own else work.way,
        "peer": peer,
        "length": work.length,
        "queries": work.queries,
        "width": work.width,
        "causal": work.is_causal,
        "heads": work.heads,
        "key_heads": work.key_heads,
        "policy": None if work.policy == "none" else work.policy,
        "rows": work.character,
        "threads": threads,
        "seconds": timing.best[work.name],
        "peer_seconds": timing.best[peer],
        "rounds": timing.rounds[work.name],
        "ratio": ratio,
        "target": work.target,
        "aim": work.aim,
        "bound": "at most",
        "reached": None if work.target is None else ratio <= work.target,
        "aim_reached": None if work.aim is None else ratio <= work.aim,
        "entropy": None if examined is None else examined.entropy,
        "inverse_temperature": None if examined is None else examined.inverse_temperature,
        "largest_weight": None if examined is None else examined.largest_weight,
    }


def _textbook_records(works: Sequence[Work], timing: Timing, threads: int) -> list[dict[str, Any]]:
    """The textbook version once more, as a ratio to sharpmax in the same run."""
    ours = [work for work in works if work.group == "comparison" and work.way == "forward"]
    made = []
    for work in works:
        if ours and work.way == "textbook":
            record = _record(work, timing, threads, None, peer=ours[0].name)
            made.append(
                record
                | {
                    "peer": f"{OURS} cpu",
                    "target": TEXTBOOK_TARGET,
                    "bound": "at least",
                    "reached": record["ratio"] >= TEXTBOOK_TARGET,
                }
            )
    return made


def _growth(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the ratio of the curve has grown between the two lengths that the target names."""
    by_place = {
        (record["threads"], record["length"]): record["ratio"]
        for record in records
        if record["work"] == "curve"
    }
    made = []
    shorter, longer = GROWTH_LENGTHS
    for threads in sorted({threads for threads, _ in by_place}):
        if (threads, shorter) in by_place and (threads, longer) in by_place:
            growth = by_place[threads, longer] / by_place[threads, shorter]
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
        progress(f"memory: {implementation}, {length:,} keys, {_count(threads, 'thread')}")
        extra = attention_memory.extra_memory(
            implementation, length=length, width=64, heads=1, threads=threads
        )
        if extra is None:
            continue
        mebibytes = extra / 2**20 / threads
        ours = implementation == OURS
        target = MEMORY_TARGET * length / MEMORY_LENGTH if ours else None
        made.append(
            {
                "implementation": f"{OURS} cpu" if ours else implementation,
                "length": length,
                "width": 64,
                "threads": threads,
                "mebibytes_a_thread": mebibytes,
                "target": target,
                "reached": None if target is None else mebibytes <= target,
            }
        )
    return made


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
