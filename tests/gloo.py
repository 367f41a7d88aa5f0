"""Processes that share a gloo group, started once and used by many tests."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = 180
"""Seconds after which a rank that waits for another gives up."""


class RankFailedError(Exception):
    """Say what was raised on which ranks: {rank: (type, message)}."""

    @property
    def raised(self) -> dict[int, tuple[str, str]]:
        return self.args[0]


class Pool:
    """Ranks that call the same function, each with arguments of its own.

    Functions and arguments are pickled, so that functions have to be importable.
    """

    def __init__(
        self,
        size: int,
        timeout: float = TIMEOUT,
        modules: tuple[str, ...] = ("distributed_cases", "distributed_calls"),
    ) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        # PyTorch is imported once.
        context.set_forkserver_preload([*modules])
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._connections, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, size, store, timeout), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], *per_rank: Any) -> None:
        """Call the function on every rank with its own tuple of arguments."""
        for connection, arguments in zip(self._connections, per_rank, strict=True):
            connection.send_bytes(pickle.dumps((function, arguments)))

    def results(self, ranks: list[int] | None = None) -> list[Any]:
        found, raised = [], {}
        for rank in range(self.size) if ranks is None else ranks:
            assert self._connections[rank].poll(TIMEOUT + 30), f"rank {rank} hangs"
            good, value = pickle.loads(self._connections[rank].recv_bytes())
            if good:
                found.append(value)
            else:
                raised[rank] = value
        if raised:
            raise RankFailedError(raised)
        return found

    def call(self, function: Callable[..., Any], *per_rank: Any) -> list[Any]:
        """Return what the function gives on each rank."""
        self.start(function, *per_rank)
        return self.results()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(connection: Any, rank: int, size: int, store: str, timeout: float) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    while True:
        try:
            function, arguments = pickle.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)  # without waiting for ranks that may be gone
        try:
            answer = True, function(*arguments)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test wants to see it)
            text = f"{error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
            answer = False, (type(error).__name__, text)
        connection.send_bytes(pickle.dumps(answer))
