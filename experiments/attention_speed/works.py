"""What the attention benchmark times: a small record a work, and what each is to reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.attention_speed.inputs import Character
from sharpmax.policies import EntropyTarget, Exponential, Paper, Policy

__all__ = [
    "COMPILED",
    "GROUPS",
    "OWN",
    "POLICIES",
    "TARGETS",
    "Way",
    "Work",
    "full_works",
    "quick_works",
]

Way = Literal[
    "forward",
    "statistics",
    "forward and backward",
    "textbook",
    "textbook, compiled",
    "FlexAttention, compiled, second pass",
    "entmax by bisection",
]
"""What is done with the inputs."""

OWN: tuple[Way, ...] = ("forward", "statistics", "forward and backward")
"""Ways of sharpmax itself."""

COMPILED: tuple[Way, ...] = ("textbook, compiled", "FlexAttention, compiled, second pass")
"""Ways that torch.compile prepares."""

GROUPS = (
    "prefill",
    "sharp",
    "decode",
    "statistics",
    "entropy-target",
    "backward",
    "curve",
    "comparison",
    "memory",
)
"""Kinds of work."""

TARGETS: dict[str, tuple[float, float]] = {
    "prefill": (1.25, 1.0),
    "sharp": (1.0, 0.7),
    "decode": (1.05, 0.8),
    "statistics": (0.8, 0.6),
    "entropy-target": (2.0, 1.5),
    "backward": (1.5, 1.1),
}
"""The ratio to reach and the one to aim at, for the kinds that have them."""

POLICIES: dict[Character, dict[str, Policy]] = {
    "dispersed": {
        "Paper": Paper(warn=False),
        "Exponential": Exponential(reference=4.5),
        "EntropyTarget": EntropyTarget(target=3.5),
    },
    "sharp": {"Paper": Paper(warn=False), "Exponential": Exponential(reference=1.0)},
}
"""Set so that they act on the rows of such inputs."""

_BOTH_MASKS = (True, False)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One thing to time.

    Attributes:
        group: One of `GROUPS`.
        length: Number of keys.
        queries: Number of queries.
        width: Of queries, keys and values.
        heads: Number of query heads.
        key_heads: Number of key heads.
        is_causal: Query i sees keys up to i.
        policy: Name of a policy, or None.
        way: What is done.
        character: What the rows of the inputs are like.

    Example:
        >>> decode = next(work for work in full_works() if work.group == "decode")
        >>> decode.name, decode.target, decode.aim
        ('decode, 1x4096x64, full, Paper', 1.05, 0.8)
    """

    group: str
    length: int
    queries: int
    width: int
    heads: int
    key_heads: int
    is_causal: bool = False
    policy: str | None = None
    way: Way = "forward"
    character: Character = "dispersed"

    @property
    def target(self) -> float | None:
        """The ratio to the peer that is to be reached."""
        return TARGETS[self.group][0] if self.group in TARGETS else None

    @property
    def aim(self) -> float | None:
        """The ratio to the peer that is aimed at."""
        return TARGETS[self.group][1] if self.group in TARGETS else None

    @property
    def name(self) -> str:
        """What sets it apart from the others, in one line."""
        parts = [
            self.group,
            f"{self.queries}x{self.length}x{self.width}",
            "causal" if self.is_causal else "full",
            self.way if self.way not in OWN else None,
            self.policy,
        ]
        return ", ".join(part for part in parts if part)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Works that agree in this have the same inputs and the same peer: they take turns."""
        return (
            self.character,
            self.queries,
            self.length,
            self.width,
            self.heads,
            self.key_heads,
            self.is_causal,
            self.way == "forward and backward",
            self.group == "comparison",
        )


def _prefill(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Work]:
    """Statistics and EntropyTarget have the same inputs, and so the same turns."""
    kinds: tuple[tuple[str, Way, str | None], ...] = (
        ("prefill", "forward", "Paper"),
        ("prefill", "forward", "Exponential"),
        ("statistics", "statistics", None),
        ("entropy-target", "forward", "EntropyTarget"),
    )
    for length, width, is_causal in itertools.product(lengths, widths, _BOTH_MASKS):
        for group, way, policy in kinds:
            yield Work(
                group=group,
                **_square(length, width),
                is_causal=is_causal,
                policy=policy,
                way=way,
            )


def _sharp(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width, is_causal in itertools.product(lengths, widths, _BOTH_MASKS):
        for policy in POLICIES["sharp"]:
            yield Work(
                group="sharp",
                **_square(length, width),
                is_causal=is_causal,
                policy=policy,
                character="sharp",
            )


def _decode(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width, policy in itertools.product(lengths, widths, ("Paper", "Exponential")):
        yield Work(
            group="decode",
            length=length,
            queries=1,
            width=width,
            heads=32,
            key_heads=8,
            policy=policy,
        )


def _backward(lengths: Sequence[int], widths: Sequence[int]) -> Iterator[Work]:
    for length, width, is_causal in itertools.product(lengths, widths, _BOTH_MASKS):
        for policy in ("Paper", "Exponential"):
            yield Work(
                group="backward",
                **_square(length, width),
                is_causal=is_causal,
                policy=policy,
                way="forward and backward",
            )


def _curve(lengths: Sequence[int]) -> Iterator[Work]:
    for length in lengths:
        # As many rows at every length, and few, so that the longest can be afforded.
        yield Work(
            group="curve",
            length=length,
            queries=256,
            width=64,
            heads=4,
            key_heads=4,
            policy="Exponential",
        )


def _comparison(length: int) -> Iterator[Work]:
    ways: tuple[Way, ...] = ("forward", "textbook", *COMPILED, "entmax by bisection")
    for is_causal, way in itertools.product((False, True), ways):
        if is_causal and way not in ("forward", "textbook"):
            continue
        yield Work(
            group="comparison",
            length=length,
            queries=length,
            width=64,
            # One head: all scores of one head at once are large enough.
            heads=1,
            key_heads=1,
            is_causal=is_causal,
            policy=None if way == "entmax by bisection" else "Paper",
            way=way,
        )


def _square(length: int, width: int) -> dict[str, Any]:
    """As many queries as keys."""
    # Fewer heads where a call takes seconds.
    heads = 2 if length <= 4096 else 1
    return {
        "length": length,
        "queries": length,
        "width": width,
        "heads": heads,
        "key_heads": heads,
    }


def full_works() -> list[Work]:
    """All the works, in the order in which they run.

    Example:
        >>> sorted({work.length for work in full_works() if work.group == "prefill"})
        [1024, 4096, 8192, 16384]
    """
    lengths, widths = (1024, 4096, 8192, 16384), (64, 128)
    return [
        *_prefill(lengths, widths),
        *_sharp(lengths, widths),
        *_decode((4096, 32768, 131072), widths),
        *_backward((1024, 4096), widths),
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
        *_prefill((256, 512), (64,)),
        *_sharp((512,), (64,)),
        *_decode((4096,), (64,)),
        *_backward((512,), (64,)),
        *_curve((1024, 4096)),
        *_comparison(512),
    ]
    return [work for work in works if work.way not in COMPILED]
