"""Parallel trainings, seed by seed, in processes here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from experiments.clrs_text.recipe import Arm
from experiments.clrs_text.study import Study
from experiments.clrs_text.training import Progress
from sharpmax._engine import Engine, Tell, run_cells, started

__all__ = ["run_in_parallel"]

_Cell: TypeAlias = tuple[tuple[Arm, ...], int]
"""Arms that share weights, the one that others start from first, and a seed."""


def run_in_parallel(
    study: Study,
    arms: Sequence[Arm],
    jobs: int,
    on_training: Callable[[Arm, int, Progress], None] = lambda *_: None,
    on_testing: Callable[[Arm, int, str], None] = lambda *_: None,
    engine: Engine = "local",
) -> None:
    """Train and test arms seed by seed, several trainings at a time.

    The results equal those of `Study.run`. All that needs the weights of a seed, fine-tuning
    included, follows its training in the same process.

    Args:
        study: The run.
        arms: The arms.
        jobs: Trainings at a time, each with its share of the cores of this machine; a small model
            gains more from processes than from threads. On a Ray cluster the share alone counts.
        on_training: Called during training, with the arm, the seed and the progress.
        on_testing: Called before each test, with the arm, the seed and the method.
        engine: Where the trainings run.

    Raises:
        SettingsChangedError: An arm was trained with another recipe.
        FloatingPointError: A loss is no longer finite.
    """

    def on_message(cell: _Cell, message: tuple[Arm, Progress | str]) -> None:
        arm, news = message
        if isinstance(news, str):
            on_testing(arm, cell[1], news)
        else:
            on_training(arm, cell[1], news)

    missing = [arm for arm in arms if study.missing(arm)]
    first = [Arm(arm.start or arm.recipe, ()).name for arm in missing]
    groups = [
        tuple(arm for arm, its in zip(missing, first, strict=True) if its == name)
        for name in dict.fromkeys(first)
    ]
    cells = [(group, seed) for seed in study.settings.seeds for group in groups]
    work = partial(_train_and_test, study)
    with started(engine):
        # The results are in the folder of the run.
        for _ in run_cells(
            work, cells, engine=engine, jobs=jobs, folder=study.folder, on_message=on_message
        ):
            pass
    for arm in arms:
        study.run(arm)


def _train_and_test(study: Study, cell: _Cell, tell: Tell) -> None:
    """Train and test one seed of arms that share weights; the results are in their folders."""
    arms, seed = cell
    for arm in arms:
        study.train_and_test(arm, seed, *(partial(_say, tell, arm),) * 2)


def _say(tell: Tell, arm: Arm, news: Progress | str) -> None:
    tell((arm, news))
