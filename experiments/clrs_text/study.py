"""The experiment: train the models of each arm, test them, and write the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from experiments.clrs_text.data import training_examples
from experiments.clrs_text.interventions import FEW, INTERVENTIONS, WITH_ITEMS, bounds
from experiments.clrs_text.measurements import LOSS, entropies, loss_curve, shares
from experiments.clrs_text.recipe import Arm, Recipe
from experiments.clrs_text.records import ENTROPY, Record, Table, load_entropy
from experiments.clrs_text.settings import Settings
from experiments.clrs_text.task import Example, HeldOut, example, held_out
from experiments.clrs_text.training import Progress, Training, load_trained, train
from experiments.common import study
from sharpmax._files import check_settings, machine, read_sealed, refuse_earlier, write_sealed

__all__ = ["Study", "steps_within"]

_ACCURACY = "CLRS-Text accuracy, format 2"
_BUDGET = "CLRS-Text budget, format 2"
# No training has this seed, and no choice was made on its questions.
_TEST_SEED = 1_000_003
# At training sizes, where questions are short, there are this many times more of them.
_MORE_INSIDE = 4
# Batches per seed that the test sets are compared with, although the splits share no inputs.
_CHECKED = 4
# Batches that measure the speed of training.
_TIMED = 20


def steps_within(recipe: Recipe, minutes: float) -> int:
    """Measure how many batches a training with plain softmax runs in a given time.

    Args:
        recipe: The recipe; its number of steps does not matter.
        minutes: The time.

    Returns:
        The number of batches, at least 1. It is measured on batches of all sizes.
    """
    trial = Training(replace(recipe, attention="softmax", steps=_TIMED + 1, curriculum=0.0), 0)
    steps = trial.run(_TIMED + 1)
    next(steps)
    start = time.monotonic()
    for _ in steps:
        pass
    return max(1, round(60 * minutes * _TIMED / (time.monotonic() - start)))


class Study(study.Study[Table]):
    """A run of the experiment in a folder.

    The folder holds `cells/ARM/seed-N/`, all that was measured of each training, and what is made
    of it: `table.json`, which grows arm by arm, `entropy.json` and `interventions.json`. Cells do
    not depend on the number of seeds. `weights/` and the training examples in `examples/` serve
    only until the cells are complete.

    Args:
        folder: Folder of the run.
        settings: The settings that all arms share.
        command: The command that makes this run.
        resume: Continue the run in the folder. Without it, a folder with a run is refused. A table
            of fewer seeds is made anew from the cells.
        interventions: Whether to replace the attention of heads of models with plain softmax.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is false.
        SettingsChangedError: The folder holds a run with other settings.
        DamagedFileError: The table in the folder is truncated or was edited.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        command: str,
        *,
        resume: bool = False,
        interventions: bool = False,
    ) -> None:
        self.settings = settings
        self._interventions = interventions
        path = folder / "table.json"
        if (folder / "cells").exists():
            if not resume:
                refuse_earlier(folder)
            if path.exists() and set(Table.load(path).seeds) < set(settings.seeds):
                path.unlink()
        super().__init__(folder, settings, command, Table, resume=resume)

    @cached_property
    def tests(self) -> dict[str, HeldOut]:
        """The test questions, the same for every arm and seed."""
        inside: dict[str, list[int]] = {}
        beyond: dict[str, list[int]] = {}
        for name, (_, largest) in self.settings.lengths.items():
            for size in self.settings.sizes(name):
                (inside if size <= largest else beyond).setdefault(name, []).append(size)
        training = list(self._training_questions())
        return {
            where: held_out(list(sizes), sizes, seed=_TEST_SEED, each=each, training=training)
            for where, sizes, each in (
                ("sizes of training", inside, _MORE_INSIDE * self.settings.each),
                ("beyond", beyond, self.settings.each),
            )
        }

    @cached_property
    def questions(self) -> dict[tuple[str, int], list[Example]]:
        """The test questions by algorithm and size."""
        found: dict[tuple[str, int], list[Example]] = {
            (name, size): [] for name in self.settings.lengths for size in self.settings.sizes(name)
        }
        for test in self.tests.values():
            for one in test.examples:
                found[one.algorithm, one.length].append(one)
        return found

    def steps(self, recipe: Recipe, minutes: float) -> int:
        """Measure the steps that fit into a time, once per tokenizer, and keep the number.

        Args:
            recipe: The recipe.
            minutes: Time for one training with plain softmax.

        Returns:
            The number of steps.

        Raises:
            SettingsChangedError: The run was started with another time.
        """
        path = self.folder / f"budget-{Arm(recipe, ()).tokenizer.replace(' ', '-')}.json"
        found = self.kept(
            path, _BUDGET, lambda: {"minutes": minutes, "steps": steps_within(recipe, minutes)}
        )
        check_settings(found, {"minutes": minutes}, path)
        return int(found["steps"])

    def missing(self, arm: Arm) -> list[str]:
        """Return the methods of an arm that the table lacks.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
        """
        self.has({arm.name: arm.recipe.to_dict()})
        return [m for m in arm.methods if not any(self.table.select(method=m, **_fields(arm)))]

    def run(
        self,
        arm: Arm,
        on_training: Callable[[int, Progress], None] = lambda *_: None,
        on_testing: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        """Train and test an arm unless the table has it, and add it to the table.

        Args:
            arm: The arm.
            on_training: Called during training, with the seed and the progress.
            on_testing: Called before each test, with the seed and the method.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
            FloatingPointError: The loss is no longer finite.
        """
        missing = self.missing(arm)
        if not missing:
            return
        by_seed = [
            self.train_and_test(arm, seed, partial(on_training, seed), partial(on_testing, seed))
            for seed in self.settings.seeds
        ]
        records = [
            Record(
                method,
                algorithm=name,
                n=n,
                examples=len(asked),
                accuracy=tuple(found[method][name][str(n)]["exact"] for found in by_seed),
                tokens=tuple(found[method][name][str(n)]["tokens"] for found in by_seed),
                **_fields(arm),
            )
            for method in missing
            for (name, n), asked in self.questions.items()
        ]
        notes = {"test": {where: str(test) for where, test in self.tests.items()}}
        self.add({arm.name: arm.recipe.to_dict()}, records, notes)

    def train_and_test(
        self,
        arm: Arm,
        seed: int,
        on_training: Callable[[Progress], None] = lambda _: None,
        on_testing: Callable[[str], None] = lambda _: None,
    ) -> dict[str, dict[str, Any]]:
        """Train one seed of an arm and measure all that needs its weights, unless it is kept.

        Args:
            arm: The arm.
            seed: The seed.
            on_training: Called during training, with the progress.
            on_testing: Called before each test, with the method.

        Returns:
            Per method that the table lacks, the shares of correct answers and tokens by algorithm
            and size.
        """
        weights = self._weights(arm, seed, on_training)

        def test(method: str) -> Any:
            trained = load_trained(weights())
            on_testing(method)
            return shares(trained, method, self.questions, self.settings)

        found = {
            method: self._cell(arm, seed, f"accuracy-{method}", _ACCURACY, partial(test, method))
            for method in self.missing(arm)
        }
        if found:
            self._loss(arm, seed)
        if found and arm.recipe.attention == "softmax" and arm.start is None:
            if seed == self.settings.seeds[0]:
                self._entropy(arm, seed, weights)
            if self._interventions:
                self._intervened(arm, seed, weights, on_testing)
        return found

    def measure_entropy(self, arm: Arm) -> dict[str, Any]:
        """Add the entropy of every head of an arm on the first seed to `entropy.json`.

        Args:
            arm: An arm that was run and trained with plain softmax.

        Returns:
            The content of the file: per arm the multiples of the largest training size, the mean
            number of tokens that an answer's row attends to, and the mean and the standard
            deviation of the entropy in nats, [multiples][layers][heads].
        """
        path = self.folder / "entropy.json"
        arms = load_entropy(path)["arms"] if path.exists() else {}
        if arm.name not in arms:
            first = self.settings.seeds[0]
            arms[arm.name] = self._entropy(arm, first, self._weights(arm, first))
            write_sealed(path, ENTROPY, {"command": self.table.command, "arms": arms})
        return load_entropy(path)

    def collect_losses(self, arms: Sequence[Arm]) -> dict[str, Any]:
        """Add the losses of arms that were run to `loss.json`.

        Returns:
            The content of the file: per arm the "steps", and per seed the mean loss since the step
            before, as "loss", [seeds][steps].
        """
        path = self.folder / "loss.json"
        found = read_sealed(path, LOSS)["arms"] if path.exists() else {}
        for arm in arms:
            curves = [self._loss(arm, seed) for seed in self.settings.seeds]
            loss = [curve["loss"] for curve in curves]
            found[arm.name] = {"steps": curves[0]["steps"], "loss": loss}
        write_sealed(path, LOSS, {"command": self.table.command, "arms": found})
        return read_sealed(path, LOSS)

    def measure_interventions(self, arm: Arm) -> dict[str, Any]:
        """Write to `interventions.json` what replacing the attention of heads brings back.

        Per algorithm and kind of intervention, up to `HEADS` heads are chosen on questions of the
        training split at four times the largest training size, and tested on the test questions.
        Single heads are tested on fewer questions.

        Args:
            arm: An arm that was run and trained with plain softmax.

        Returns:
            The content of the file: per seed and algorithm, what `interventions.bounds` returns.
        """
        seeds = {
            str(seed): self._intervened(arm, seed, self._weights(arm, seed))
            for seed in self.settings.seeds
        }
        path = self.folder / "interventions.json"
        write_sealed(path, INTERVENTIONS, {"command": self.table.command, "seeds": seeds})
        return read_sealed(path, INTERVENTIONS)

    def _cell(self, arm: Arm, seed: int, name: str, kind: str, make: Callable[[], Any]) -> Any:
        """Return what was measured of a training, from its file if there is one."""
        path = self.folder / "cells" / arm.name / f"seed-{seed}" / f"{name}.json"
        settings = {**self.settings.to_dict(), "recipe": arm.recipe.to_dict()}
        del settings["seeds"]
        if not path.exists():
            source = {"versions": self.table.versions, "machine": machine()}
            content = {"command": self.command, "settings": settings, **source, "result": make()}
            write_sealed(path, kind, content)
        data = read_sealed(path, kind)
        check_settings(data["settings"], settings, path)
        return data["result"]

    def _weights(
        self, arm: Arm, seed: int, on_training: Callable[[Progress], None] = lambda _: None
    ) -> Callable[[], Path]:
        """Return a function that trains when it is first called, or finds what was trained."""
        folder, examples = self.folder / "weights", self.folder / "examples"

        @cache
        def weights() -> Path:
            start = None
            for each in (Arm(arm.start, ()), arm) if arm.start else (arm,):
                start = train(
                    each.recipe,
                    seed,
                    folder / each.name / f"seed-{seed}",
                    on_progress=on_training,
                    examples=examples,
                    start=start,
                )
            assert start is not None
            return start

        return weights

    def _entropy(self, arm: Arm, seed: int, weights: Callable[[], Path]) -> Any:
        """Measure the entropy of every head at several sizes."""

        def measure() -> dict[str, Any]:
            asked = {each: list(self._at(each)) for each in (0.5, 1.0, *self.settings.times)}
            return entropies(load_trained(weights()), asked)

        return self._cell(arm, seed, "entropy", ENTROPY, measure)

    def _loss(self, arm: Arm, seed: int) -> Any:
        """Return the loss during a training, once it is trained."""
        weights = self._weights(arm, seed)
        return self._cell(arm, seed, "loss", LOSS, lambda: loss_curve(weights()))

    def _intervened(
        self,
        arm: Arm,
        seed: int,
        weights: Callable[[], Path],
        on_testing: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Replace the attention of heads, by algorithm."""

        def measure(name: str) -> dict[str, Any]:
            trained = load_trained(weights())
            on_testing(f"heads on {name}")
            largest = self.settings.lengths[name][1]
            few = [example(name, 4 * largest, seed=_TEST_SEED, index=index) for index in range(FEW)]
            sizes = [math.ceil(largest * times) for times in self.settings.times]
            asked = {size: self.questions[name, size] for size in sizes}
            return bounds(trained.model, trained.encoder, few, asked)

        return {
            name: self._cell(
                arm, seed, f"interventions-{name}", INTERVENTIONS, partial(measure, name)
            )
            for name in self.settings.lengths
            if name in WITH_ITEMS
        }

    def _at(self, times: float) -> Iterator[Example]:
        """Yield a few test questions of all algorithms at a multiple of the largest size."""
        for name, (smallest, largest) in self.settings.lengths.items():
            size = max(smallest, math.ceil(largest * times))
            yield from self.questions.get((name, size), [])[:16]

    def _training_questions(self) -> Iterator[str]:
        """Yield the first questions of all trainings."""
        recipe = Recipe(lengths=self.settings.lengths, curriculum=0.0)
        for seed in self.settings.seeds:
            for step in range(_CHECKED):
                yield from (one.question for one in training_examples(recipe, seed, step))


def _fields(arm: Arm) -> dict[str, str]:
    """Return the fields that the records of an arm share."""
    return {"trained_with": arm.trained_with, "tokenizer": arm.tokenizer}
