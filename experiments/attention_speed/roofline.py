"""Predict times of the Triton kernels from what they do and what devices can do at most.

A launch takes as long as its slowest resource: matrix units, exponential units or memory. Nothing
here ran on these devices. The launches are those that the operators make, caught before they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import typer
from rich.console import Console
from torch import Tensor

from experiments.attention_speed.work import Work, of_launch, total
from experiments.common.command import Output, current_command, show
from sharpmax._attention.impl.triton import counting, operators
from sharpmax._attention.impl.triton import launch as launching
from sharpmax._attention.impl.triton.launch import Launch, score_bits
from sharpmax._files import versions, write_json
from sharpmax.report._page.tables import Table

__all__ = ["DEVICES", "WORKLOADS", "Device", "Workload", "planned", "predict", "roofline", "table"]


@dataclass(frozen=True)
class Device:
    """What a device can do at most, by its maker.

    Attributes:
        architecture: Its entry in the table of tiles.
        operations: Operations of dense bfloat16 products per second.
        bandwidth: Bytes of memory per second.
        processors: Multiprocessors or compute units.
        clock: Hertz, at most.
        exponentials: Per processor and clock.
        source: Where the figures are from.
    """

    architecture: str
    operations: float
    bandwidth: float
    processors: int
    clock: float
    exponentials: int
    source: str

    def seconds(self, work: Work) -> float:
        """Return how long a launch takes at least: as long as its slowest resource."""
        rate = self.exponentials * self.processors * self.clock
        return max(
            work.operations / self.operations,
            work.exponentials / rate,
            work.bytes / self.bandwidth,
        )


_GUIDE = "CUDA C++ Programming Guide, throughput of arithmetic instructions"
DEVICES = {
    "A100": Device(
        "sm_80", 312e12, 2.039e12, 108, 1.41e9, 16,
        f"NVIDIA A100 80GB SXM data sheet; A100 architecture white paper; {_GUIDE}",
    ),
    "H100": Device(
        "sm_90", 989.4e12, 3.35e12, 132, 1.83e9, 16,
        f"NVIDIA H100 SXM5 data sheet; H100 architecture white paper; {_GUIDE}",
    ),
    "B200": Device(
        "sm_100", 2250e12, 8e12, 148, 1.85e9, 16,
        "NVIDIA Blackwell data sheet; FlashAttention-4, together.ai/blog/flashattention-4",
    ),
    "MI300X": Device(
        "gfx942", 1307.4e12, 5.3e12, 304, 2.1e9, 16,
        "AMD Instinct MI300X data sheet; transcendental functions at a quarter of 64 lanes",
    ),
}  # fmt: skip

FLASH_TILES = {64: (128, 128), 128: (128, 64)}
"""Rows and keys of FlashAttention-2's programs by width: Dao-AILab/flash-attention,
csrc/flash_attn/src/flash_fwd_launch_template.h, without dropout, on A100 and H100."""

FLASH_DECODING_ROWS = 64
"""Rows of its programs when keys are divided, from the same file."""


@dataclass(frozen=True)
class Workload:
    """A call of attention in bfloat16, with 32 query heads and 8 key heads.

    Attributes:
        name: What it is.
        calls: The operators that it goes through.
        queries: Number of queries.
        keys: Number of keys. With as many queries, attention is causal.
        width: Width of keys and values.
        goal: The largest share of plain attention's `limit`, if there is one.
        limit: "operations" or "bytes".
    """

    name: str
    calls: tuple[str, ...]
    queries: int
    keys: int
    width: int
    goal: float | None = None
    limit: str = "operations"


def _workloads() -> Iterator[Workload]:
    both = ("measure", "attend")
    for width in (128, 64):
        length = 8192
        yield Workload("prefill", both, length, length, width, 1.5)
        yield Workload("prefill, beta is known", ("attend",), length, length, width)
        yield Workload("prefill, LogLength", ("count", "attend"), length, length, width)
        yield Workload("statistics", ("measure",), length, length, width, 0.5)
        held = (*both, "attend backward")
        yield Workload("training, beta detached", held, length, length, width)
        full = (*held, "measure backward")
        yield Workload("training", full, length, length, width)
        yield Workload("decode", both, 1, 32768, width, 1.05, "bytes")


WORKLOADS = tuple(_workloads())
HEADS, KEY_HEADS = 32, 8


@contextmanager
def planned(device: Device) -> Iterator[list[Launch]]:
    """Let operators lay out launches for a device, on tensors without memory; none runs."""
    found: list[Launch] = []

    def record(launch: Launch) -> Launch:
        found.append(launch)
        return launch

    with ExitStack() as stack:
        for name, value in (
            ("architecture_of", lambda _: device.architecture),
            ("processors", lambda _: device.processors),
            ("interpreted", lambda: False),
        ):
            stack.enter_context(mock.patch.object(launching, name, value))
        stack.enter_context(mock.patch.object(Launch, "run", record))
        yield found


def launches(workload: Workload, device: Device) -> list[Launch]:
    """Return the launches of a workload on a device."""
    causal = workload.queries == workload.keys
    few = workload.queries == 1
    options = (workload.width**-0.5, 0.0, -1, 0 if causal else -1, 0)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query = empty(1, HEADS, workload.queries, workload.width)
    key, value = (empty(1, KEY_HEADS, workload.keys, workload.width) for _ in range(2))
    rows = empty(1, HEADS, workload.queries, dtype=torch.float32)
    trained = "attend backward" in workload.calls
    bits = score_bits(query.dtype) if few else 0
    scores = None
    with planned(device) as found:
        for call in workload.calls:
            match call:
                case "count":
                    counting._count(query, key, None, *options)
                case "measure":
                    *_, kept = operators._measure(
                        query, key, None, None, None, bits, trained, *options
                    )
                    scores = kept if few else None
                case "attend":
                    known = rows if "measure" in workload.calls else None
                    operators._attend(query, key, value, None, rows, known, scores, bits, *options)
                case "attend backward":
                    operators._attend_backward(
                        query, rows, query, key, value, None, rows, query, rows, rows, False,
                        *options,
                    )  # fmt: skip
                case "measure backward":
                    numbers = (rows, rows, rows, rows)
                    operators._measure_backward(query, key, None, None, *numbers, False, *options)
    return found


def flash(workload: Workload, device: Device) -> list[Work]:
    """Count the work of FlashAttention-2 on the same inputs: one pass, and five products back.

    Every query head has programs of its own, but for one query: then heads that share keys are rows
    of one program, and as many programs share the keys as keep the device busy twice.
    """
    queries, keys, width = workload.queries, workload.keys, workload.width
    rows, columns = FLASH_TILES[width]
    of_query, of_key = 2 * HEADS * queries * width, 2 * KEY_HEADS * keys * width
    output, log_mass = of_query, 4 * HEADS * queries
    if queries == 1:
        area = KEY_HEADS * FLASH_DECODING_ROWS * keys
        splits = 2 * device.processors // KEY_HEADS
        output, log_mass = splits * 2 * of_query, splits * log_mass  # in float32
    else:
        blocks = sum(-(-min(end, keys) // columns) for end in range(rows, queries + rows, rows))
        area = HEADS * blocks * rows * columns
    found = [Work(4 * area * width, area, of_query + 2 * of_key, output + log_mass)]
    if "attend backward" in workload.calls:
        read = 3 * of_query + 2 * of_key + log_mass
        found.append(Work(10 * area * width, area, read, of_query + 2 * of_key))
    return found


def predict(workload: Workload) -> dict[str, Any]:
    """Return the work of a workload, its ratio to FlashAttention-2, and times by device."""
    record: dict[str, Any] = {**asdict(workload), "devices": {}}
    for name, device in DEVICES.items():
        made, plain = launches(workload, device), flash(workload, device)
        parts = [of_launch(each) for each in made]
        ours, theirs = total(parts), total(plain)
        seconds, baseline = (sum(map(device.seconds, each)) for each in (parts, plain))
        record["devices"][name] = {
            "launches": [
                {"kernel": each.kernel, "tile": each.tile._asdict(), **asdict(work)}
                for each, work in zip(made, parts, strict=True)
            ],
            "flash": asdict(theirs),
            "operations": ours.operations / theirs.operations,
            "exponentials": ours.exponentials / theirs.exponentials,
            "bytes": ours.bytes / theirs.bytes,
            "seconds": seconds,
            "flash_seconds": baseline,
            "ratio": seconds / baseline,
        }
    return record


def roofline(context: typer.Context, output: Output = Path("build/attention_speed")) -> None:
    """Predict times of the Triton kernels on GPUs, without one.

    Writes operations, exponentials, bytes and predicted times to OUTPUT/roofline.json.
    """
    result = {
        "command": current_command(context),
        "versions": versions(["torch", "triton"]),
        "devices": {name: asdict(device) for name, device in DEVICES.items()},
        "records": [predict(workload) for workload in WORKLOADS],
    }
    output.mkdir(parents=True, exist_ok=True)
    path = write_json(output / "roofline.json", result)
    show(Console(), [table(result)], [path])


def table(result: dict[str, Any]) -> Table:
    """Return one row per workload: work and predicted time, relative to FlashAttention-2."""
    rows = []
    for record in result["records"]:
        found = record["devices"].values()
        goal, limit = record["goal"], record["limit"]
        worst = max(each[limit] for each in found)
        said = "" if goal is None else f"{limit} ≤ {goal:g}: {_verdict(worst, goal)}"
        rows.append(
            [
                record["name"],
                str(record["width"]),
                *(_range([each[k] for each in found]) for k in ("operations", "exponentials")),
                _range([each["bytes"] for each in found]),
                *(f"{each['ratio']:.2f}" for each in found),
                said,
            ]
        )
    return Table(
        [
            "workload",
            "width",
            "operations",
            "exponentials",
            "bytes",
            *(f"time, {name}" for name in result["devices"]),
            "goal",
        ],
        rows,
        title="Predicted, relative to FlashAttention-2",
        caption="Nothing here was measured. bfloat16, 32 query heads, 8 key heads; causal over"
        " 8,192 tokens, or one query over 32,768 keys. A range spans the devices."
        f" Written by `{result['command']}`.",
    )


def _range(ratios: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{each:.2f}" for each in (min(ratios), max(ratios))))


def _verdict(worst: float, goal: float) -> str:
    return "met" if round(worst, 3) <= goal else f"missed by {worst / goal - 1:.1%}"
