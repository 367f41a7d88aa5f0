"""List the workloads of the attention benchmark, and the targets of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments.attention_speed.inputs import Character, Shape
from sharpmax.policies import EntropyTarget, Exponential, Paper, Policy

__all__ = [
    "APART",
    "COMPILED",
    "KINDS",
    "OWN",
    "POLICIES",
    "TARGETS",
    "Method",
    "Workload",
    "full_workloads",
    "quick_workloads",
]

Method = Literal[
    "forward",
    "statistics",
    "forward and backward",
    "textbook",
    "textbook, compiled",
    "FlexAttention, compiled, second pass",
    "entmax by bisection",
]
"""What is computed from the inputs."""

OWN: tuple[Method, ...] = ("forward", "statistics", "forward and backward")
"""Methods of sharpmax itself."""

COMPILED: tuple[Method, ...] = ("textbook, compiled", "FlexAttention, compiled, second pass")
"""Methods that torch.compile prepares."""

KINDS = {
    "prefill": "prefill",
    "sharp": "prefill, sharp rows",
    "decode": "decode, one query",
    "statistics": "statistics alone",
    "entropy-target": "EntropyTarget",
    "backward": "forward + backward",
    "curve": "256 queries, n keys",
    "comparison": "other implementations",
    "precision": "float32, bfloat16, float16",
    "few": "9 to 24 rows over one key head",
    "memory": "memory",
    "profile": "profile",
}
"""Kinds of workload, and their titles in tables and figures."""

APART = ("comparison", "precision", "few")
"""Kinds that have tables of their own."""

TARGETS: dict[str, tuple[float, float]] = {
    "prefill": (1.25, 1.0),
    "sharp": (1.0, 0.7),
    "decode": (1.05, 0.8),
    "statistics": (0.8, 0.6),
    "entropy-target": (1.5, 1.1),
    "backward": (1.5, 1.1),
}
"""Target and stretch target of the ratio, for the kinds that have them."""

POLICIES: dict[Character, dict[str, Policy]] = {
    "dispersed": {
        "Paper": Paper(warn=False),
        "Exponential": Exponential(reference=4.5),
        "EntropyTarget": EntropyTarget(target=3.5),
    },
    "sharp": {"Paper": Paper(warn=False), "Exponential": Exponential(reference=1.0)},
}
"""Policies by name, with parameters at which they act on such rows."""

WIDTHS = (64, 128)
"""Widths of queries, keys and values."""

_TWO = ("Paper", "Exponential")


@dataclass(frozen=True)
class Workload:
    """One thing to time.

    Attributes:
        kind: One of `KINDS`.
        shape: Shape and character of the inputs.
        policy: Name of a policy, or None.
        method: What is computed.
        dtype: That of the inputs; None for that of the run.

    Example:
        >>> decode = next(each for each in full_workloads() if each.kind == "decode")
        >>> decode.name
        'decode, 1x4096x64, full, Paper'
    """

    kind: str
    shape: Shape
    policy: str | None = None
    method: Method = "forward"
    dtype: str | None = None

    @property
    def name(self) -> str:
        """A name that no other workload with the same inputs has."""
        shape = self.shape
        parts = [
            self.kind,
            f"{shape.queries}x{shape.keys}x{shape.width}",
            "causal" if shape.is_causal else "full",
            self.method if self.method not in OWN else None,
            self.policy,
            self.dtype,
        ]
        return ", ".join(part for part in parts if part)

    @property
    def group(self) -> tuple[Any, ...]:
        """Workloads of the same group are timed in turn, against the same baseline."""
        backward, apart = self.method == "forward and backward", self.kind == "comparison"
        return self.shape, backward, apart, self.dtype


def _square(
    kind: str,
    lengths: Sequence[int],
    widths: Sequence[int],
    policies: Sequence[str | None] = _TWO,
    method: Method = "forward",
    character: Character = "dispersed",
) -> Iterator[Workload]:
    """Yield workloads with as many queries as keys, causal and full."""
    for length, width, is_causal in itertools.product(lengths, widths, (True, False)):
        # Fewer heads where a call takes seconds.
        heads = 2 if length <= 4096 else 1
        shape = Shape(
            queries=length,
            keys=length,
            width=width,
            heads=heads,
            key_heads=heads,
            is_causal=is_causal,
            character=character,
        )
        for policy in policies:
            yield Workload(kind, shape, policy, method)


def _prefill(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Workload]:
    yield from _square("prefill", lengths, widths)
    yield from _square("statistics", lengths, widths, (None,), "statistics")
    yield from _square("entropy-target", lengths, widths, ("EntropyTarget",))


def _decode(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Workload]:
    for length, width, policy in itertools.product(lengths, widths, _TWO):
        shape = Shape(queries=1, keys=length, width=width, heads=32, key_heads=8)
        yield Workload("decode", shape, policy)


def _curve(lengths: Sequence[int]) -> Iterator[Workload]:
    for length in lengths:
        # The same few rows at every length, so that the longest is affordable.
        shape = Shape(queries=256, keys=length, heads=4, key_heads=4)
        yield Workload("curve", shape, "Exponential")


def _comparison(length: int, other: Sequence[Method]) -> Iterator[Workload]:
    for is_causal in (False, True):
        # One head: its scores, all at once, are large enough.
        shape = Shape(queries=length, keys=length, is_causal=is_causal)
        for method in ("forward", "textbook", *(() if is_causal else other)):
            policy = None if method == "entmax by bisection" else "Paper"
            yield Workload("comparison", shape, policy, method)


def _precision(length: int, keys: int) -> Iterator[Workload]:
    """Yield prefill and decoding, each in three dtypes."""
    square = Shape(queries=length, keys=length, heads=2, key_heads=2)
    shapes = [
        *(replace(square, width=width) for width in WIDTHS),
        Shape(queries=1, keys=keys, width=128, heads=32, key_heads=8),
    ]
    for shape, dtype in itertools.product(shapes, ("float32", "bfloat16", "float16")):
        yield Workload("precision", shape, "Exponential", dtype=dtype)


def _few(lengths: Sequence[int]) -> Iterator[Workload]:
    for length, rows in itertools.product(lengths, (9, 16, 24)):
        yield Workload("few", Shape(queries=rows, keys=length), "Exponential")


def full_workloads() -> list[Workload]:
    """Return all workloads, in the order in which they run.

    Example:
        >>> sorted({each.shape.keys for each in full_workloads() if each.kind == "prefill"})
        [1024, 4096, 8192, 16384]
    """
    lengths, widths = (1024, 4096, 8192, 16384), WIDTHS
    return [
        *_prefill(lengths, widths),
        *_square("sharp", lengths, widths, character="sharp"),
        *_decode((4096, 32768, 131072), widths),
        *_square("backward", (1024, 4096), widths, method="forward and backward"),
        *_curve([1024 * 2**power for power in range(8)]),
        *_comparison(4096, (*COMPILED, "entmax by bisection")),
        *_precision(4096, 32768),
        *_few((4096, 32768)),
    ]


def quick_workloads() -> list[Workload]:
    """Return a few small workloads of each kind, none of which torch.compile has to prepare.

    Example:
        >>> set(KINDS) - {each.kind for each in quick_workloads()} == {"memory", "profile"}
        True
    """
    return [
        *_prefill((256, 512), (64,)),
        *_square("sharp", (512,), (64,), character="sharp"),
        *_decode((4096,), (64,)),
        *_square("backward", (512,), (64,), method="forward and backward"),
        *_curve((1024, 4096)),
        *_comparison(512, ("entmax by bisection",)),
        *_precision(256, 1024),
        *_few((1024,)),
    ]
