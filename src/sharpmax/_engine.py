"""Run the independent cells of a sweep: one after the other, in processes, or on a Ray cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from sharpmax._errors import SharpmaxError
from sharpmax._extras import require
from sharpmax._files import RefusedError

Engine = Literal["local", "ray"]
"""Where cells run."""

Tell = Callable[[Any], None]
"""Sends a message about a cell to the process that asked for it."""

Cell = TypeVar("Cell")
Result = TypeVar("Result")
_Submit = Callable[[int, Any], Future[Any]]

_INTERVAL = 0.5
"""Seconds between checks for messages of other processes."""

_RETRIES = 3
"""How often Ray tries a cell again whose worker was lost."""

_QUEUE = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
"""Messages need no core, and survive the loss of the process that keeps them."""

_worker: dict[str, Any] = {}
"""The state of a process of a pool: the work, and the queue for its messages."""


class LostWorkerError(SharpmaxError, RuntimeError):
    """A cell could not be finished, because its workers were lost again and again."""


def run_cells(
    work: Callable[[Cell, Tell], Result],
    cells: Iterable[Cell],
    *,
    engine: Engine = "local",
    jobs: int = 1,
    folder: Path | None = None,
    on_message: Callable[[Cell, Any], None] = lambda *_: None,
) -> Iterator[tuple[Cell, Result]]:
    """Run work on every cell, and yield each cell with its result as soon as it is there.

    A cell has as many threads of PyTorch wherever it runs, so that its result is the same: those of
    this process, or its share of the cores with several jobs.

    Args:
        work: A function of a cell and of a function that sends messages. Other processes get a
            copy of it and of all that it holds.
        cells: The cells. One after the other, each is taken when it is run, so that later ones may
            depend on earlier results; otherwise all are taken at the start.
        engine: "local" for this machine. "ray" for the cluster that this process has joined, that
            RAY_ADDRESS names or `ray start` began; without one it begins a cluster on this machine,
            which ends with the iteration. A cell whose worker is lost is run again.
        jobs: Cells at the same time with the local engine, each in a process of its own if there
            are several.
        folder: Where the work reads and writes files, which all machines of a cluster must share.
        on_message: Called with a cell and what its work sent.

    Raises:
        MissingExtraError: The engine is "ray", and Ray is not installed.
        RefusedError: A machine of the cluster does not see the folder, or none has enough cores.
        LostWorkerError: The workers of a cell were lost several times.
        Exception: What the work raises.

    Example:
        >>> dict(run_cells(lambda cell, tell: cell**2, [2, 3]))
        {2: 4, 3: 9}
    """
    if engine == "local" and jobs == 1:
        for cell in cells:
            yield cell, work(cell, partial(on_message, cell))
        return
    import torch

    threads = torch.get_num_threads() if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs)
    every = list(cells)
    if not every:
        return
    opened: AbstractContextManager[tuple[_Submit, Any]] = (
        _processes(work, jobs, threads) if engine == "local" else _ray(work, threads, folder)
    )
    with opened as (submit, messages):
        waiting = {submit(number, cell): cell for number, cell in enumerate(every)}
        while waiting:
            done, _ = wait(waiting, _INTERVAL, FIRST_COMPLETED)
            for number, message in _received(messages):
                on_message(every[number], message)
            for each in done:
                yield waiting.pop(each), each.result()


def in_order(
    cells: Iterable[Cell], found: Iterator[tuple[Cell, Result]]
) -> Iterator[tuple[Cell, Result]]:
    """Yield cells with their results in the order of the cells, for files that keep it.

    Example:
        >>> list(in_order("ab", iter([("b", 2), ("a", 1)])))
        [('a', 1), ('b', 2)]
    """
    early: dict[Cell, Result] = {}
    for cell in cells:
        while cell not in early:
            early.update([next(found)])
        yield cell, early.pop(cell)


@contextmanager
def started(engine: Engine) -> Iterator[None]:
    """Join the Ray cluster that is there, or begin one, for several sweeps; do nothing if local."""
    require_engine(engine)
    ray: Any = None if engine == "local" else importlib.import_module("ray")
    if ray is None or ray.is_initialized():
        yield
        return
    # RAY_ADDRESS, then the cluster of `ray start`, then one of this process. With address="auto" it
    # might join the cluster of another process, which ends with that process.
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def require_engine(engine: Engine) -> None:
    """Check before the work that what an engine needs is installed."""
    if engine == "ray":
        # Ray reads this when it is imported, and reports to its makers without it.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        require("ray", extra="ray", what="--engine ray")


def _received(messages: Any) -> Iterator[Any]:
    """Take messages from a queue until it is empty."""
    while True:
        try:
            yield messages.get(block=False)
        except queue.Empty:
            return


@contextmanager
def _processes(work: Callable[..., Any], jobs: int, threads: int) -> Iterator[tuple[_Submit, Any]]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = ProcessPoolExecutor(jobs, context, _start, (work, messages, threads))
        try:
            yield lambda number, cell: pool.submit(_run_beside, number, cell), messages
        finally:
            # Cells that run are ended by their next message, because the queue is gone.
            pool.shutdown(wait=False, cancel_futures=True)


def _start(work: Callable[..., Any], messages: Any, threads: int) -> None:
    """Prepare a process of a pool."""
    import torch

    torch.set_num_threads(threads)
    _worker.update(work=work, messages=messages)


def _run_beside(number: int, cell: Any) -> Any:
    """Run a cell in a process of a pool."""

    def tell(message: Any) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            # A killed parent cannot stop this process. What was written stays.
            raise SystemExit(1)
        _worker["messages"].put((number, message))

    return _worker["work"](cell, tell)


@contextmanager
def _ray(
    work: Callable[..., Any], threads: int, folder: Path | None
) -> Iterator[tuple[_Submit, Any]]:
    with started("ray"):
        ray: Any = importlib.import_module("ray")
        queues: Any = importlib.import_module("ray.util.queue")
        most = int(max(each["Resources"].get("CPU", 0) for each in ray.nodes() if each["Alive"]))
        if threads > most:
            raise RefusedError(
                f"expected a machine of the Ray cluster with {threads} CPUs, one per thread of this"
                f" process, got at most {most}; set OMP_NUM_THREADS to {most} or less"
            )
        messages = queues.Queue(actor_options=_QUEUE)
        run = ray.remote(num_cpus=threads, max_retries=_RETRIES)(_run_there)
        shared = ray.put(work)
        places = Path.cwd(), folder and folder.absolute()
        submitted = []

        def submit(number: int, cell: Any) -> Future[Any]:
            submitted.append(run.remote(shared, number, cell, messages, threads, *places))
            future: Future[Any] = submitted[-1].future()
            return future

        try:
            yield submit, messages
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
            raise LostWorkerError(
                f"a cell was run {_RETRIES + 1} times, and its worker was lost each time: {error}; "
                "find out whether memory is short, then resume the run"
            ) from None
        finally:
            for reference in submitted:
                ray.cancel(reference, force=True)
            messages.shutdown(force=True)


def _run_there(
    work: Callable[..., Any],
    number: int,
    cell: Any,
    messages: Any,
    threads: int,
    place: Path,
    folder: Path | None,
) -> Any:
    """Run a cell in a worker of Ray."""
    import torch

    if folder is not None and not folder.is_dir():
        raise RefusedError(
            f"{folder}: expected a folder that all machines of the Ray cluster share, but a worker "
            "does not see it; choose an --output on a shared disk"
        )
    if place.is_dir():
        # Relative paths mean the same there.
        os.chdir(place)
    torch.set_num_threads(threads)
    return work(cell, lambda message: messages.put((number, message)))
