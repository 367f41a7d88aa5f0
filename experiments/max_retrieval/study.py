"""The whole experiment: train the heads of each arm, test them, and write the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.common.timing import thread_count
from experiments.max_retrieval.anatomy import KIND, dissect, load_anatomy
from experiments.max_retrieval.arms import AS_TRAINED, CLASS_BLIND, Arm, Look
from experiments.max_retrieval.evaluation import (
    Answering,
    Streamed,
    accuracy,
    accuracy_as_trained,
    unlabelled_sets,
)
from experiments.max_retrieval.figure_data import load_figures, measure_figures, save_figures
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.inference import MAIN, inference_methods
from experiments.max_retrieval.profile import Profile
from experiments.max_retrieval.records import (
    Group,
    Record,
    Table,
    WeightsKind,
)
from experiments.max_retrieval.training import (
    Progress,
    load_heads,
    train,
    weights_path,
)
from sharpmax._files import check_settings, read_sealed, refuse_earlier, write_sealed

__all__ = ["Settings", "Study"]

_RECORDS = "max-retrieval records, format 1"
_Test = Callable[[int, int], dict[str, float]]
_BLIND_SETS = 1024
_WEIGHTS: tuple[WeightsKind, ...] = ("last", "averaged")


@dataclass(frozen=True)
class Settings:
    """What all arms of a run have in common.

    Attributes:
        seeds: The seeds of the heads.
        steps: Batches of a standard training; other trainings are multiples of it.
        sizes: Numbers of items to test at.
        sets: Test sets at each of the sizes.
        far: Further sizes, at which recipes that go beyond are tested in double precision.
        far_sets: Test sets at each of these.
    """

    seeds: tuple[int, ...]
    steps: int
    sizes: tuple[int, ...]
    sets: tuple[int, ...]
    far: tuple[int, ...] = ()
    far_sets: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it comes back from JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


class Study:
    """A run of the experiment in a folder, which can be stopped at any moment and go on.

    The folder holds `table.json`, which grows arm by arm, and `weights/ARM/`.

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
        self.table = Table(command, settings.seeds, {}, (), settings=settings.to_dict())
        exists = self.table_path.exists()
        if not resume and (exists or (folder / "weights").exists()):
            refuse_earlier(folder)
        if exists:
            before = Table.load(self.table_path)
            check_settings(before.settings, settings.to_dict(), self.table_path)
            self.table = replace(self.table, recipes=before.recipes, records=before.records)

    @property
    def table_path(self) -> Path:
        """The file of the table."""
        return self.folder / "table.json"

    def run(
        self,
        arm: Arm,
        on_training: Callable[[Progress], None] = lambda _: None,
        on_testing: Callable[[Look, WeightsKind, int], None] = lambda *_: None,
    ) -> None:
        """Train and test an arm, unless the table has it, and add it to the table.

        Args:
            arm: What to train and test.
            on_training: Called during training.
            on_testing: Called before each size of each test.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
            FloatingPointError: The loss became infinite.
        """
        recipes = {
            look.recipe: {**arm.recipe.to_dict(), "tested_after": look.step} for look in arm.looks
        }
        if recipes.keys() <= self.table.recipes.keys():
            for name, recipe in recipes.items():
                check_settings(self.table.recipes[name], recipe, self.table_path)
            return
        folder = self.folder / "weights" / arm.name
        keep = [look.step for look in arm.looks]
        train(arm.recipe, self.settings.seeds, folder, keep=keep, on_progress=on_training)
        records: list[Record] = []
        for look in arm.looks:
            for weights in _WEIGHTS:
                # A test takes minutes, so what is done of an arm is kept until the arm is.
                kept = folder / f"records-{look.step}-{weights}.json"
                if not kept.exists():
                    found = self._test(arm, look, weights, folder, on_testing)
                    content = {
                        "settings": self.settings.to_dict(),
                        "records": [asdict(record) for record in found],
                    }
                    write_sealed(kept, _RECORDS, content)
                data = read_sealed(kept, _RECORDS)
                check_settings(data["settings"], self.settings.to_dict(), kept)
                records += map(Record.from_dict, data["records"])
        self.table = replace(
            self.table,
            recipes={**self.table.recipes, **recipes},
            records=(*self.table.records, *records),
        )
        self.table.save(self.table_path)

    def measure_figures(self, arm: Arm) -> dict[str, Any]:
        """Measure what the figures show, on the first seed and the averaged weights of an arm.

        Of several looks, on the one that methods are compared on.

        Args:
            arm: One that was run.

        Returns:
            What was measured, which is also in `figures.json`.
        """
        path = self.folder / "figures.json"
        if path.exists():
            return load_figures(path)
        compared = [look for look in arm.looks if "inference" in look.groups] or arm.looks
        weights = weights_path(self.folder / "weights" / arm.name, compared[-1].step)
        heads, _ = load_heads(weights, "averaged")
        data = measure_figures(heads.alone(0), self.settings.sizes, self.table.command)
        save_figures(path, data)
        return data

    def dissect(self, arm: Arm) -> dict[str, Any]:
        """Find out what the logits of an arm are made of, and add it to `anatomy.json`.

        Args:
            arm: One that was run. One that was not trained with softmax has no part in this.

        Returns:
            What is in the file: for each recipe and kind of weights slope, deviation of the
            offsets, and the accuracy that they predict for hard attention, a number a seed.
        """
        path = self.folder / "anatomy.json"
        found = load_anatomy(path) if path.exists() else {"recipes": {}}
        for look in arm.looks:
            if arm.recipe.normaliser != "softmax" or look.recipe in found["recipes"]:
                continue
            entry: dict[str, Any] = {}
            for weights in _WEIGHTS:
                file = weights_path(self.folder / "weights" / arm.name, look.step)
                heads, _ = load_heads(file, weights)
                seeds = [dissect(heads.alone(index)) for index in range(len(heads.seeds))]
                entry[weights] = {
                    "slope": [anatomy.slope for anatomy in seeds],
                    "deviation": [anatomy.deviation for anatomy in seeds],
                    "predicted": {
                        str(n): [anatomy.predicted_accuracy(n) for anatomy in seeds]
                        for n in self.settings.sizes
                    },
                }
            found["recipes"][look.recipe] = entry
        data = {"command": self.table.command, "recipes": found["recipes"]}
        write_sealed(path, KIND, data)
        return data

    def _test(
        self,
        arm: Arm,
        look: Look,
        weights: WeightsKind,
        folder: Path,
        on_testing: Callable[[Look, WeightsKind, int], None],
    ) -> Iterator[Record]:
        sets_of = dict(zip(self.settings.sizes, self.settings.sets, strict=True))
        near = [(n, sets_of[n]) for n in arm.sizes(self.settings.sizes)]
        far = list(zip(self.settings.far, self.settings.far_sets, strict=True))
        heads, recipe = load_heads(weights_path(folder, look.step), weights)
        one = [heads.alone(index) for index in range(len(heads.seeds))]
        passes = [(near, [_near(head, look) for head in one])]
        if weights == "averaged" and look.far:
            passes.append((far, [_far(head) for head in one]))
        if weights == "averaged" and look.blind:
            # Class-blind logits are the costliest; no more sets than at large sizes.
            sizes = [(n, min(sets, _BLIND_SETS)) for n, sets in near]
            sizes += far if look.far else []
            passes.append((sizes, [_blind(head) for head in one]))
        for sizes, tests in passes:
            for n, sets in sizes:
                on_testing(look, weights, n)
                by_seed = _by_seed(tests, n, sets)
                for method in by_seed[0]:
                    for group in _groups(look, method):
                        yield Record(
                            method=recipe.normaliser if method == AS_TRAINED else method,
                            weights=weights,
                            trained_with=recipe.normaliser,
                            recipe=look.recipe,
                            group=group,
                            n=n,
                            sets=sets,
                            accuracy=tuple(by_method[method] for by_method in by_seed),
                        )


def _by_seed(tests: Sequence[_Test], n: int, sets: int) -> list[dict[str, float]]:
    """Accuracies by method, for each seed."""
    # Operations are small: a thread a seed does more than several threads an operation.
    with thread_count(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda test: test(n, sets), tests))


def _groups(look: Look, method: str) -> list[Group]:
    """The parts of the table that show a method."""
    if method in CLASS_BLIND.values():
        return ["beyond"]
    return [group for group, shown in look.groups.items() if shown is None or method in shown]


def _near(heads: Heads, look: Look) -> _Test:
    """What a look asks for, in single precision."""
    names = {name for shown in look.groups.values() for name in shown or ()}
    if AS_TRAINED in names:
        return lambda n, sets: {AS_TRAINED: accuracy_as_trained(heads, n, sets)}
    head = Streamed(heads)
    every = None in look.groups.values()
    ways = inference_methods(_calibration(head), None if every else sorted(names))
    return lambda n, sets: accuracy(head, ways, n, sets)


def _far(heads: Heads) -> _Test:
    """The main methods, in double precision."""
    head = Profile(heads)
    ways = inference_methods(_calibration(head), MAIN)
    return lambda n, sets: accuracy(head, ways, n, sets)


def _blind(heads: Heads) -> _Test:
    """Methods on logits from which what a class adds to them is taken."""
    head = Profile(heads, class_blind=True)
    found = inference_methods(_calibration(head), list(CLASS_BLIND))
    ways = {CLASS_BLIND[name]: way for name, way in found.items()}
    return lambda n, sets: accuracy(head, ways, n, sets)


def _calibration(head: Answering) -> Tensor:
    """Logits of sets without labels; no more items in a set than training had."""
    return head.logits(unlabelled_sets(16))
