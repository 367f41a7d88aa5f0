"""The whole experiment: train the models of each arm, test them, and write the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.clrs_text.arms import Arm
from experiments.clrs_text.data import training_examples
from experiments.clrs_text.entropy import answer_entropies
from experiments.clrs_text.evaluation import shares_right
from experiments.clrs_text.inference import applied, rule_of
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.records import Record, Table
from experiments.clrs_text.task import Example, HeldOut, held_out
from experiments.clrs_text.training import Progress, Training, load_trained, train
from sharpmax._files import check_settings, read_sealed, refuse_earlier, write_sealed

__all__ = ["ENTROPY", "Settings", "Study", "load_entropy", "steps_within"]

ENTROPY = "CLRS-Text entropy, format 1"
_ACCURACY = "CLRS-Text accuracy, format 1"
_BUDGET = "CLRS-Text budget, format 1"
# No training has this seed, and nothing was chosen by its questions.
_TEST_SEED = 1_000_003
# At sizes of training, where questions are short, there are so many times as many of them.
_MORE_INSIDE = 4
# Batches of each seed that the test sets are checked against, although they cannot share inputs.
_CHECKED = 4
# Batches that the speed of training is measured by.
_TIMED = 20


@dataclass(frozen=True)
class Settings:
    """What all arms of a run have in common.

    Attributes:
        seeds: Of the trainings.
        lengths: The algorithms, and for each the smallest and the largest size in training.
        each: Test questions of each algorithm at each size beyond training; there are four times as
            many at sizes of training.
        times: The sizes beyond training: multiples of the largest size in training.
        fit_steps: Of the calibration of heads.
    """

    seeds: tuple[int, ...]
    lengths: Mapping[str, tuple[int, int]]
    each: int = 64
    times: tuple[float, ...] = (1.5, 2, 3, 4)
    fit_steps: int = 40

    def sizes(self, algorithm: str) -> list[int]:
        """The sizes of the tests of an algorithm: four of training, and those beyond."""
        smallest, largest = self.lengths[algorithm]
        inside = {max(smallest, round(largest * part / 4)) for part in range(1, 5)}
        return sorted(inside | {math.ceil(largest * times) for times in self.times})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it comes back from JSON."""
        return {
            "seeds": list(self.seeds),
            "lengths": {name: list(both) for name, both in self.lengths.items()},
            "each": self.each,
            "times": list(self.times),
            "fit_steps": self.fit_steps,
        }


def steps_within(recipe: Recipe, minutes: float) -> int:
    """How many batches a training with plain softmax has in a time on this machine.

    Args:
        recipe: How to train; its number of steps does not matter.
        minutes: The time.

    Returns:
        The number, at least 1; of batches of all sizes, which are slower than the first ones of a
        training, so that the time is not exceeded.
    """
    trial = Training(replace(recipe, attention="softmax", steps=_TIMED + 1, curriculum=0.0), 0)
    steps = trial.run(_TIMED + 1)
    next(steps)
    begun = time.monotonic()
    for _ in steps:
        pass
    return max(1, round(60 * minutes * _TIMED / (time.monotonic() - begun)))


class Study:
    """A run of the experiment in a folder, which can be stopped at any moment and go on.

    The folder holds `table.json`, which grows arm by arm, `entropy.json`, `weights/ARM/seed-N/`,
    and in `examples/` what was drawn for training.

    Args:
        folder: Where the run is.
        settings: What all arms have in common.
        command: How to run this again.
        resume: Go on with what the folder holds; without it a folder that holds a run is refused.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is false.
        SettingsChangedError: The folder holds a run with other settings.
        DamagedFileError: The table in the folder is cut off or was edited.
    """

    def __init__(
        self, folder: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.command = command
        self.table = Table(
            command,
            settings.seeds,
            {},
            (),
            lengths=dict(settings.lengths),
            settings=settings.to_dict(),
        )
        if not resume and (self.table_path.exists() or (folder / "weights").exists()):
            refuse_earlier(folder)
        self._read_table()

    def _read_table(self) -> None:
        """Take over what the file of the table has, also what another process has added to it."""
        if self.table_path.exists():
            before = Table.load(self.table_path)
            check_settings(before.settings, self.settings.to_dict(), self.table_path)
            self.table = replace(
                self.table,
                command=_together(before.command, self.command),
                recipes=before.recipes,
                records=before.records,
            )

    @property
    def table_path(self) -> Path:
        """The file of the table."""
        return self.folder / "table.json"

    @cached_property
    def tests(self) -> dict[str, HeldOut]:
        """The test questions, at sizes of training and beyond: the same for every arm and seed."""
        inside: dict[str, list[int]] = {}
        beyond: dict[str, list[int]] = {}
        for name, (_, largest) in self.settings.lengths.items():
            sizes = self.settings.sizes(name)
            inside[name] = [size for size in sizes if size <= largest]
            beyond[name] = [size for size in sizes if size > largest]
        training = list(self._questions())
        return {
            where: held_out(list(sizes), sizes, seed=_TEST_SEED, each=each, training=training)
            for where, sizes, each in (
                ("sizes of training", inside, _MORE_INSIDE * self.settings.each),
                ("beyond", beyond, self.settings.each),
            )
        }

    def steps(self, recipe: Recipe, minutes: float) -> int:
        """The steps that a time allows, measured once for each tokenizer and kept.

        Args:
            recipe: How to train.
            minutes: For one training with plain softmax.

        Raises:
            SettingsChangedError: The run began with another time.
        """
        path = self.folder / f"budget-{Arm(recipe).name.rpartition('-')[0]}.json"
        if not path.exists():
            steps = steps_within(recipe, minutes)
            write_sealed(path, _BUDGET, {"minutes": minutes, "steps": steps})
        found = read_sealed(path, _BUDGET)
        check_settings(found, {"minutes": minutes}, path)
        return int(found["steps"])

    def run(
        self,
        arm: Arm,
        on_training: Callable[[int, Progress], None] = lambda *_: None,
        on_testing: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        """Train and test an arm, unless the table has it, and add it to the table.

        Args:
            arm: What to train and test.
            on_training: Called during training, with the seed.
            on_testing: Called before each test, with the seed and the method.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
            FloatingPointError: The loss became infinite.
        """
        missing = self.missing(arm)
        if not missing:
            return
        by_method: dict[str, list[dict[str, Any]]] = {method: [] for method in missing}
        for seed in self.settings.seeds:

            def on_progress(at: Progress, seed: int = seed) -> None:
                on_training(seed, at)

            def on_test(method: str, seed: int = seed) -> None:
                on_testing(seed, method)

            found = self.train_and_test(arm, seed, on_progress, on_test)
            for method in missing:
                by_method[method].append(found[method])
        named = _named(arm)
        records = [
            Record(
                method,
                algorithm=name,
                n=n,
                examples=len(asked),
                accuracy=tuple(seed[name][str(n)]["exact"] for seed in by_method[method]),
                tokens=tuple(seed[name][str(n)]["tokens"] for seed in by_method[method]),
                **named,
            )
            for method in missing
            for (name, n), asked in self._asked().items()
        ]
        self._read_table()
        self.table = replace(
            self.table,
            recipes={**self.table.recipes, arm.name: arm.recipe.to_dict()},
            records=(*self.table.records, *records),
            settings={
                **self.settings.to_dict(),
                "test": {where: str(test) for where, test in self.tests.items()},
            },
        )
        self.table.save(self.table_path)

    def missing(self, arm: Arm) -> list[str]:
        """The methods of an arm that the table does not have.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
        """
        if arm.name in self.table.recipes:
            check_settings(self.table.recipes[arm.name], arm.recipe.to_dict(), self.table_path)
        methods = arm.methods or (arm.recipe.attention,)
        return [m for m in methods if not any(self.table.select(method=m, **_named(arm)))]

    def train_and_test(
        self,
        arm: Arm,
        seed: int,
        on_training: Callable[[Progress], None] = lambda _: None,
        on_testing: Callable[[str], None] = lambda _: None,
    ) -> dict[str, dict[str, Any]]:
        """Train and test one seed of an arm, unless its folder has it.

        Args:
            arm: What to train and test.
            seed: Which seed.
            on_training: Called during training.
            on_testing: Called before each test, with the method.

        Returns:
            For each method that the table does not have the shares that are right, by algorithm
            and size.
        """
        folder = self.folder / "weights" / arm.name / f"seed-{seed}"
        weights = train(
            arm.recipe, seed, folder, on_progress=on_training, examples=self.folder / "examples"
        )
        found = {}
        for method in self.missing(arm):
            kept = folder / f"accuracy-{method}.json"
            if not kept.exists():
                on_testing(method)
                content = {
                    "settings": self.settings.to_dict(),
                    "accuracy": self._test(arm, method, weights),
                }
                write_sealed(kept, _ACCURACY, content)
            data = read_sealed(kept, _ACCURACY)
            check_settings(data["settings"], self.settings.to_dict(), kept)
            found[method] = data["accuracy"]
        return found

    def measure_entropy(self, arm: Arm) -> dict[str, Any]:
        """Measure how far the heads of an arm spread, on the first seed, and keep it.

        Args:
            arm: One that was run, trained with plain softmax: others would be measured without
                what they were trained with.

        Returns:
            What is in `entropy.json`: for each arm the multiples of the largest size in training,
            the mean number of tokens that a row of an answer sees, and mean and deviation of the
            entropy, in nats: [multiples][layers][heads].
        """
        path = self.folder / "entropy.json"
        found = load_entropy(path)["arms"] if path.exists() else {}
        if arm.name not in found:
            seed = self.settings.seeds[0]
            folder = self.folder / "weights" / arm.name / f"seed-{seed}"
            trained = load_trained(folder / "weights.safetensors")
            multiples = [0.5, 1.0, *self.settings.times]
            entry: dict[str, Any] = {"multiples": multiples, "visible": []}
            entry |= {"mean": [], "deviation": []}
            for times in multiples:
                examples = list(self._at(times))
                measured = answer_entropies(trained.model, trained.encoder, examples)
                entry["visible"].append(float(np.mean(measured.visible)))
                entry["mean"].append(measured.entropy.mean(-1).tolist())
                entry["deviation"].append(measured.entropy.std(-1).tolist())
            found = {**(load_entropy(path)["arms"] if path.exists() else {}), arm.name: entry}
            write_sealed(path, ENTROPY, {"command": self.table.command, "arms": found})
        return load_entropy(path)

    def _test(self, arm: Arm, method: str, weights: Path) -> dict[str, dict[str, dict[str, float]]]:
        """Shares of answers and of their tokens that are right, by algorithm and size."""
        trained = load_trained(weights)
        if arm.recipe.attention != "softmax":
            context: Any = trained.attention
        else:
            rule = rule_of(
                method,  # type: ignore[arg-type]
                trained.model,
                trained.encoder,
                self.settings.lengths,
                steps=self.settings.fit_steps,
            )
            context = applied(trained.model, rule)
        found: dict[str, dict[str, Any]] = {name: {} for name in self.settings.lengths}
        with context:
            for (name, n), examples in self._asked().items():
                shares = shares_right(trained.model, trained.encoder, examples)
                exact = sum(share == 1 for share in shares) / len(shares)
                found[name][str(n)] = {"exact": exact, "tokens": sum(shares) / len(shares)}
        return found

    def _asked(self) -> dict[tuple[str, int], list[Example]]:
        """The test questions by algorithm and size."""
        found: dict[tuple[str, int], list[Example]] = {}
        for test in self.tests.values():
            for one in test.examples:
                found.setdefault((one.algorithm, one.length), []).append(one)
        return {
            (name, size): found[name, size]
            for name in self.settings.lengths
            for size in self.settings.sizes(name)
        }

    def _at(self, times: float) -> Iterator[Example]:
        """A few test questions of all algorithms at a multiple of the largest size in training."""
        for name, (smallest, largest) in self.settings.lengths.items():
            size = max(smallest, math.ceil(largest * times))
            yield from self._asked().get((name, size), [])[:16]

    def _questions(self) -> Iterator[str]:
        """Questions that trainings begin with."""
        recipe = Recipe(lengths=self.settings.lengths, curriculum=0.0)
        for seed in self.settings.seeds:
            for step in range(_CHECKED):
                yield from (one.question for one in training_examples(recipe, seed, step))


def load_entropy(path: Path) -> dict[str, Any]:
    """Read what `Study.measure_entropy` wrote.

    Raises:
        DamagedFileError: The file is cut off, was edited, or is something else.
    """
    return read_sealed(path, ENTROPY)


def _together(before: str, command: str) -> str:
    """The commands that make a table, one after the other.

    Example:
        >>> _together("sharpmax a && sharpmax b --resume", "sharpmax c")
        'sharpmax a && sharpmax b --resume && sharpmax c --resume'
        >>> _together("sharpmax a", "sharpmax a")
        'sharpmax a'
    """
    known = [each.removesuffix(" --resume") for each in before.split(" && ")]
    return before if command in known else f"{before} && {command} --resume"


def _named(arm: Arm) -> dict[str, str]:
    """What the records of an arm have in common."""
    tokens = "own tokens" if arm.recipe.model else arm.recipe.tokenizer
    return {"trained_with": arm.recipe.attention, "tokenizer": tokens}
