"""The experiment: train the models of each arm, test them, and write the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.clrs_text.data import training_examples
from experiments.clrs_text.evaluation import answer_entropies, shares_correct
from experiments.clrs_text.interventions import FEW, INTERVENTIONS, WITH_ITEMS, bounds
from experiments.clrs_text.methods import applied, change_of
from experiments.clrs_text.recipe import Arm, Recipe
from experiments.clrs_text.records import ENTROPY, Record, Table, load_entropy
from experiments.clrs_text.task import Example, HeldOut, example, held_out
from experiments.clrs_text.training import Progress, Training, load_trained, train
from experiments.common import study
from sharpmax._files import check_settings, read_sealed, write_sealed

__all__ = ["Settings", "Study", "steps_within"]

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


@dataclass(frozen=True)
class Settings:
    """The settings that all arms of a run share.

    Attributes:
        seeds: Seeds of the trainings.
        lengths: The smallest and the largest training size, by algorithm.
        each: Test questions per algorithm and size beyond training; four times as many at training
            sizes.
        times: The sizes beyond training, as multiples of the largest training size.
        fit_steps: Steps of the calibration of heads.
        inside: Number of test sizes within training, at most.
    """

    seeds: tuple[int, ...]
    lengths: Mapping[str, tuple[int, int]]
    each: int = 64
    times: tuple[float, ...] = (1.5, 2, 3, 4)
    fit_steps: int = 40
    inside: int = 4

    def sizes(self, algorithm: str) -> list[int]:
        """Return the test sizes of an algorithm: some within training, and those beyond."""
        smallest, largest = self.lengths[algorithm]
        parts = range(1, self.inside + 1)
        inside = {max(smallest, round(largest * part / self.inside)) for part in parts}
        return sorted(inside | {math.ceil(largest * times) for times in self.times})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, equal to what JSON gives back."""
        lengths = {name: list(both) for name, both in self.lengths.items()}
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "lengths": lengths,
            "times": list(self.times),
        }


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

    The folder holds `table.json`, which grows arm by arm, `entropy.json`, `weights/ARM/seed-N/`,
    and the training examples in `examples/`.

    Args:
        folder: Folder of the run.
        settings: The settings that all arms share.
        command: The command that makes this run.
        resume: Continue the run in the folder. Without it, a folder with a run is refused.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is false.
        SettingsChangedError: The folder holds a run with other settings.
        DamagedFileError: The table in the folder is truncated or was edited.
    """

    def __init__(
        self, folder: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> None:
        self.settings = settings
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
        """Train and test one seed of an arm unless its folder has the results.

        Args:
            arm: The arm.
            seed: The seed.
            on_training: Called during training, with the progress.
            on_testing: Called before each test, with the method.

        Returns:
            Per method that the table lacks, the shares of correct answers and tokens by algorithm
            and size.
        """
        folder, examples = self._folder_of(arm, seed), self.folder / "examples"
        start = None
        if arm.start is not None:
            before = self._folder_of(Arm(arm.start, ()), seed)
            start = train(arm.start, seed, before, on_progress=on_training, examples=examples)
        weights = train(
            arm.recipe, seed, folder, on_progress=on_training, examples=examples, start=start
        )

        def test(method: str) -> Any:
            on_testing(method)
            return self._test(arm, method, weights)

        return {
            method: self.kept(folder / f"accuracy-{method}.json", _ACCURACY, partial(test, method))
            for method in self.missing(arm)
        }

    def measure_entropy(self, arm: Arm) -> dict[str, Any]:
        """Measure the entropy of every head of an arm on the first seed, and keep it.

        Args:
            arm: An arm that was run and trained with plain softmax.

        Returns:
            The content of `entropy.json`: per arm the multiples of the largest training size, the
            mean number of tokens that an answer's row attends to, and the mean and the standard
            deviation of the entropy in nats, [multiples][layers][heads].
        """
        path = self.folder / "entropy.json"
        arms = load_entropy(path)["arms"] if path.exists() else {}
        if arm.name not in arms:
            weights = self._folder_of(arm, self.settings.seeds[0]) / "weights.safetensors"
            trained = load_trained(weights)
            multiples = [0.5, 1.0, *self.settings.times]
            measured = [
                answer_entropies(trained.model, trained.encoder, list(self._at(times)))
                for times in multiples
            ]
            entry = {
                "multiples": multiples,
                "visible": [float(np.mean(each.visible)) for each in measured],
                "mean": [each.entropy.mean(-1).tolist() for each in measured],
                "deviation": [each.entropy.std(-1).tolist() for each in measured],
            }
            # Read again: another process may have added an arm.
            arms = load_entropy(path)["arms"] if path.exists() else {}
            content = {"command": self.table.command, "arms": {**arms, arm.name: entry}}
            write_sealed(path, ENTROPY, content)
        return load_entropy(path)

    def measure_interventions(
        self, arm: Arm, on_testing: Callable[[int, str], None] = lambda *_: None
    ) -> dict[str, Any]:
        """Replace the attention of heads, and keep how much accuracy comes back.

        Per algorithm and kind of intervention, up to `HEADS` heads are chosen on questions of the
        training split at four times the largest training size, and tested on the test questions.
        Single heads are tested on fewer questions.

        Args:
            arm: An arm that was run and trained with plain softmax.
            on_testing: Called before each test, with the seed and the algorithm.

        Returns:
            The content of `interventions.json`: per seed, algorithm and kind the chosen heads, and
            per size the shares of correct answers and tokens: "plain", of the chosen "set", and of
            each head, "single", [layers][heads].
        """

        def measure(trained: Training, name: str, seed: int) -> dict[str, Any]:
            on_testing(seed, name)
            largest = self.settings.lengths[name][1]
            few = [example(name, 4 * largest, seed=_TEST_SEED, index=index) for index in range(FEW)]
            sizes = [math.ceil(largest * times) for times in self.settings.times]
            asked = {size: self.questions[name, size] for size in sizes}
            return bounds(trained.model, trained.encoder, few, asked)

        seeds: dict[str, Any] = {}
        for seed in self.settings.seeds:
            folder = self._folder_of(arm, seed)
            trained = load_trained(folder / "weights.safetensors")
            seeds[str(seed)] = {
                name: self.kept(
                    folder / f"interventions-{name}.json",
                    INTERVENTIONS,
                    partial(measure, trained, name, seed),
                )
                for name in self.settings.lengths
                if name in WITH_ITEMS
            }
        path = self.folder / "interventions.json"
        write_sealed(path, INTERVENTIONS, {"command": self.table.command, "seeds": seeds})
        return read_sealed(path, INTERVENTIONS)

    def _folder_of(self, arm: Arm, seed: int) -> Path:
        return self.folder / "weights" / arm.name / f"seed-{seed}"

    def _test(self, arm: Arm, method: str, weights: Path) -> dict[str, dict[str, dict[str, float]]]:
        """Compute the shares of correct answers and tokens, by algorithm and size."""
        trained = load_trained(weights)
        context: AbstractContextManager[object] = trained.attention
        if arm.recipe.attention == "softmax":
            change = change_of(
                method,
                trained.model,
                trained.encoder,
                self.settings.lengths,
                steps=self.settings.fit_steps,
            )
            context = applied(trained.model, change)
        found: dict[str, dict[str, Any]] = {name: {} for name in self.settings.lengths}
        with context:
            for (name, n), examples in self.questions.items():
                shares = shares_correct(trained.model, trained.encoder, examples)
                exact = sum(share == 1 for share in shares) / len(shares)
                found[name][str(n)] = {"exact": exact, "tokens": sum(shares) / len(shares)}
        return found

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
