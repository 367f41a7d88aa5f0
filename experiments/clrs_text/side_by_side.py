"""Trainings side by side: each a process of its own, with its share of the cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from experiments.clrs_text.arms import Arm
from experiments.clrs_text.study import Settings, Study
from experiments.clrs_text.training import Progress
from experiments.common.allocator import keep_freed_memory

__all__ = ["run_side_by_side"]

# Seconds from one look at what the processes say to the next.
_LOOK = 0.5
# What a process knows: the run, and where it says how far it is.
_here: dict[str, Any] = {}


def run_side_by_side(
    study: Study,
    arms: Sequence[Arm],
    jobs: int,
    on_training: Callable[[Arm, int, Progress], None] = lambda *_: None,
    on_testing: Callable[[Arm, int, str], None] = lambda *_: None,
) -> None:
    """Train and test arms, several seeds at a time, and add them to the table of a run.

    What comes out is the same as with `Study.run`, arm by arm.

    Args:
        study: The run.
        arms: What to train and test.
        jobs: How many at a time; a small model gains more from this than from several threads.
        on_training: Called during training, with the arm and the seed.
        on_testing: Called before each test, with the arm, the seed and the method.

    Raises:
        SettingsChangedError: An arm was trained with another recipe.
        FloatingPointError: A loss became infinite.
    """
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        said = manager.Queue()
        told = (said, max(1, (os.cpu_count() or 1) // jobs), study.folder, study.settings)
        with ProcessPoolExecutor(jobs, context, _begin, told) as pool:
            work = [
                pool.submit(_train_and_test, arm, seed)
                for arm in arms
                if study.missing(arm)
                for seed in study.settings.seeds
            ]
            try:
                while not all(each.done() for each in work):
                    _hand_on(said, on_training, on_testing)
                _hand_on(said, on_training, on_testing)
                for each in work:
                    each.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    for arm in arms:
        study.run(arm)


def _hand_on(
    said: Any,
    on_training: Callable[[Arm, int, Progress], None],
    on_testing: Callable[[Arm, int, str], None],
) -> None:
    """Hand on what processes said, until none has said anything for a while."""
    while True:
        try:
            arm, seed, what = said.get(timeout=_LOOK)
        except queue.Empty:
            return
        if isinstance(what, str):
            on_testing(arm, seed, what)
        else:
            on_training(arm, seed, what)


def _begin(said: Any, threads: int, folder: Path, settings: Settings) -> None:
    """Make a process ready."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    _here.update(said=said, study=Study(folder, settings, "", resume=True))


def _train_and_test(arm: Arm, seed: int) -> None:
    """Train and test a seed of an arm; what comes out is in its folder."""

    def say(what: Progress | str) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            # Killed, it could not end this process; the checkpoint stays.
            raise SystemExit(1)
        _here["said"].put((arm, seed, what))

    _here["study"].train_and_test(arm, seed, say, say)
