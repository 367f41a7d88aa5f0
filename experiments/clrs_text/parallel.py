"""Parallel trainings: each is a cell of its own, in a process here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.clrs_text.recipe import Arm
from experiments.clrs_text.study import Study
from experiments.clrs_text.training import Progress
from sharpmax._engine import Engine, Tell, run_cells, started

__all__ = ["run_in_parallel"]


def run_in_parallel(
    study: Study,
    arms: Sequence[Arm],
    jobs: int,
    on_training: Callable[[Arm, int, Progress], None] = lambda *_: None,
    on_testing: Callable[[Arm, int, str], None] = lambda *_: None,
    engine: Engine = "local",
) -> None:
    """Train and test arms, several seeds at a time; the result equals that of `Study.run`.

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

    def on_message(cell: tuple[Arm, int], message: Progress | str) -> None:
        if isinstance(message, str):
            on_testing(*cell, message)
        else:
            on_training(*cell, message)

    work = partial(_train_and_test, study)
    with started(engine):
        # Tuned arms start from weights that others train.
        for tuned in (False, True):
            cells = [
                (arm, seed)
                for arm in arms
                if arm.recipe.tuned == tuned and study.missing(arm)
                for seed in study.settings.seeds
            ]
            # The results are in the folder of the run.
            for _ in run_cells(
                work, cells, engine=engine, jobs=jobs, folder=study.folder, on_message=on_message
            ):
                pass
    for arm in arms:
        study.run(arm)


def _train_and_test(study: Study, cell: tuple[Arm, int], tell: Tell) -> None:
    """Train and test one seed of an arm; the results are in its folder."""
    study.train_and_test(*cell, tell, tell)
