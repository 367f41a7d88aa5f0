"""Count and time what attention over ranks sends, with gloo processes on this machine."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sharpmax
from experiments.distributed_cost.model import METHODS, Network, Shape
from sharpmax.distributed import _ranks
from sharpmax.policies import Exponential

__all__ = ["measure", "network_of"]

_SIZES = (1 << 10, 1 << 22)
"""Bytes of a short message and of a long one, which give latency and bandwidth."""


def measure(ranks: int, shapes: dict[str, Shape], *, repeats: int) -> dict[str, Any]:
    """Run every method on `ranks` processes.

    Returns:
        Under "shifts" the seconds to pass so many bytes on, and under "calls" for each shape and
        method the collectives, the bytes into them, the seconds of these collectives one after the
        other with nothing between them, the seconds within them during the call, and the
        collectives and bytes of the backward pass. Times are the best of all repetitions; within
        the call, on the rank that waited least for others.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.SimpleQueue()
        arguments = (ranks, str(Path(folder) / "store"), shapes, repeats, queue)
        processes = [
            context.Process(target=_work, args=(rank, *arguments)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found: dict[str, Any] = queue.get()
        for process in processes:
            process.join()
    if "error" in found:
        raise RuntimeError(found["error"])
    return found


def network_of(shifts: list[list[float]]) -> Network:
    """Return the latency and bandwidth of a short and a long message."""
    (few, quick), (many, slow) = shifts
    bandwidth = (many - few) / (slow - quick)
    return Network(quick - few / bandwidth, bandwidth)


def _work(rank: int, ranks: int, store: str, shapes: Any, repeats: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(minutes=5),
    )
    try:
        result = _measure(ranks, shapes, repeats)
    except Exception as error:  # noqa: BLE001  (the parent waits for an answer)
        result = {"error": f"rank {rank}: {error}"}
    if rank == 0:
        queue.put(result)
    dist.destroy_process_group()


def _measure(ranks: int, shapes: dict[str, Shape], repeats: int) -> dict[str, Any]:
    everyone = _ranks.Ranks(None, None)
    shifts = []
    for size in _SIZES:
        sent, received = torch.zeros(2, size, dtype=torch.uint8)
        shift = _shift(everyone, sent, received)
        times = [_timed(everyone, shift) for _ in range(10 * repeats)]
        shifts.append([size, min(times)])
    calls = []
    for name, shape in shapes.items():
        for method in METHODS:
            call = _attention(shape, method, everyone)
            call()
            runs = [_watched(everyone, call) for _ in range(repeats)]
            kinds, sizes, _ = runs[0]
            best = min(seconds for _, _, seconds in runs)
            replayed = _replay(everyone, kinds, sizes)
            alone = min(_timed(everyone, replayed) for _ in range(repeats))
            calls.append({
                "shape": name, "method": method, "kinds": kinds, "sizes": sizes,
                "seconds": alone, "within_call": best, "backward": _backward(call, everyone),
            })  # fmt: skip
    return {"ranks": ranks, "shifts": shifts, "calls": calls}


def _backward(call: Callable[..., torch.Tensor], everyone: Any) -> dict[str, Any]:
    """Return the collectives of the backward pass, and the bytes that go into each."""
    with torch.enable_grad():
        total = call(requires_grad=True).sum()
    kinds, sizes, _ = _watched(everyone, total.backward)
    return {"kinds": kinds, "sizes": sizes}


def _replay(everyone: Any, kinds: list[str], sizes: list[int]) -> Callable[[], None]:
    """Return what sends messages of the same kinds and sizes, without any computation."""
    ranks = everyone.size
    steps: list[Callable[[], object]] = []
    for kind, size in zip(kinds, sizes, strict=True):
        tensor = torch.zeros(max(size // 4, 1))
        if kind == "shift":
            steps.append(_shift(everyone, tensor, torch.empty_like(tensor)))
        elif kind == "all_to_all":
            parts = list(tensor.chunk(ranks))
            steps.append(partial(everyone.exchanged, parts, [part.numel() for part in parts]))
        else:
            function = everyone.total if kind == "all_reduce" else everyone.gathered
            steps.append(partial(function, tensor))

    def replayed() -> None:
        for step in steps:
            step()

    return replayed


def _shift(everyone: Any, sent: torch.Tensor, received: torch.Tensor) -> Callable[[], None]:
    return lambda: everyone.passed_on([(sent, received)]).wait()


def _timed(everyone: Any, call: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    return -float(everyone.largest(torch.tensor([start - time.perf_counter()])))


def _attention(shape: Shape, method: str, everyone: Any) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries = shape.queries if method == "tree" else shape.queries // everyone.size
    keys = shape.keys // everyone.size

    def made(heads: int, length: int) -> torch.Tensor:
        return torch.randn(shape.batch, heads, length, shape.width, generator=generator)

    tensors = made(shape.heads, queries), *(made(shape.key_heads, keys) for _ in range(2))
    placement = "replicated" if method == "tree" else "sharded"
    options: Any = {"method": method, "query_placement": placement, "enable_gqa": True}
    function: Any = sharpmax.distributed.attention

    def call(*, requires_grad: bool = False) -> torch.Tensor:
        given = (x.detach().requires_grad_(requires_grad) for x in tensors)
        output: torch.Tensor = function(*given, policy=Exponential(2.0), **options)
        return output

    return call


def _watched(everyone: Any, call: Callable[[], object]) -> tuple[list[str], list[int], float]:
    """Return the collectives of a call, the bytes that go into each, and the time in them."""
    kinds: list[str] = []
    sizes: list[int] = []
    spent = [0.0]

    def watching(kind: str, original: Callable[..., Any], position: int) -> Callable[..., Any]:
        def replaced(*arguments: Any, **options: Any) -> Any:
            given = arguments[position]
            tensor = given if isinstance(given, torch.Tensor) else given[0].tensor
            kinds.append(kind)
            sizes.append(tensor.numel() * tensor.element_size())
            start = time.perf_counter()
            result = original(*arguments, **options)
            spent[0] += time.perf_counter() - start
            return result

        return replaced

    def waiting(passing: Any) -> None:
        start = time.perf_counter()
        original_wait(passing)
        spent[0] += time.perf_counter() - start

    names = (
        ("all_reduce", "all_reduce", 0),
        ("all_gather", "all_gather", 1),
        ("all_to_all_single", "all_to_all", 1),
        ("batch_isend_irecv", "shift", 0),
    )
    originals = {name: getattr(dist, name) for name, _, _ in names}
    messages: Any = _ranks.Passing
    original_wait = messages.wait
    try:
        for name, kind, position in names:
            setattr(dist, name, watching(kind, originals[name], position))
        messages.wait = waiting
        dist.barrier()
        call()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
        messages.wait = original_wait
    least = -float(everyone.largest(torch.tensor([-spent[0]])))
    return kinds, sizes, least
