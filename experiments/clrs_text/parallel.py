"""Parallel trainings: one process per training, each with its share of the cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from experiments.clrs_text.recipe import Arm
from experiments.clrs_text.study import Settings, Study
from experiments.clrs_text.training import Progress

__all__ = ["run_in_parallel"]

# Seconds between checks for messages of the processes.
_INTERVAL = 0.5
# The state of a worker process: the run, and the queue for its messages.
_worker: dict[str, Any] = {}


def run_in_parallel(
    study: Study,
    arms: Sequence[Arm],
    jobs: int,
    on_training: Callable[[Arm, int, Progress], None] = lambda *_: None,
    on_testing: Callable[[Arm, int, str], None] = lambda *_: None,
) -> None:
    """Train and test arms, several seeds at a time; the result equals that of `Study.run`.

    Args:
        study: The run.
        arms: The arms.
        jobs: Number of processes; a small model gains more from processes than from threads.
        on_training: Called during training, with the arm, the seed and the progress.
        on_testing: Called before each test, with the arm, the seed and the method.

    Raises:
        SettingsChangedError: An arm was trained with another recipe.
        FloatingPointError: A loss is no longer finite.
    """
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        threads = max(1, (os.cpu_count() or 1) // jobs)
        arguments = (messages, threads, study.folder, study.settings)
        with ProcessPoolExecutor(jobs, context, _start, arguments) as pool:
            # Tuned arms start from weights that others train.
            for tuned in (False, True):
                work = [
                    pool.submit(_train_and_test, arm, seed)
                    for arm in arms
                    if arm.recipe.tuned == tuned and study.missing(arm)
                    for seed in study.settings.seeds
                ]
                try:
                    while not all(each.done() for each in work):
                        _forward(messages, on_training, on_testing)
                    _forward(messages, on_training, on_testing)
                    for each in work:
                        each.result()
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    for arm in arms:
        study.run(arm)


def _forward(
    messages: Any,
    on_training: Callable[[Arm, int, Progress], None],
    on_testing: Callable[[Arm, int, str], None],
) -> None:
    """Forward messages of the processes until none has arrived for a while."""
    while True:
        try:
            arm, seed, message = messages.get(timeout=_INTERVAL)
        except queue.Empty:
            return
        if isinstance(message, str):
            on_testing(arm, seed, message)
        else:
            on_training(arm, seed, message)


def _start(messages: Any, threads: int, folder: Path, settings: Settings) -> None:
    """Prepare a worker process."""
    torch.set_num_threads(threads)
    _worker.update(messages=messages, study=Study(folder, settings, "", resume=True))


def _train_and_test(arm: Arm, seed: int) -> None:
    """Train and test one seed of an arm; the results are in its folder."""

    def send(message: Progress | str) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            # A killed parent cannot stop this process. The checkpoint stays.
            raise SystemExit(1)
        _worker["messages"].put((arm, seed, message))

    _worker["study"].train_and_test(arm, seed, send, send)
