"""The whole experiment: train the heads of each arm, test them, and write the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpmax.lab.max_retrieval.arms import AS_TRAINED, CLASS_BLIND, Arm, Look
from sharpmax.lab.max_retrieval.evaluation import (
    Streamed,
    accuracy,
    accuracy_as_trained,
    unlabelled_sets,
)
from sharpmax.lab.max_retrieval.head import Heads
from sharpmax.lab.max_retrieval.inference import MAIN, inference_methods
from sharpmax.lab.max_retrieval.profile import Profile
from sharpmax.lab.max_retrieval.records import Record, Table, WeightsKind
from sharpmax.lab.max_retrieval.training import (
    Progress,
    load_heads,
    train,
    weights_path,
)
from sharpmax.lab.results import SettingsChanged

__all__ = ["Settings", "Study"]

# Calibration sees no more items than training did.
_CALIBRATION_SIZE = 16
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
        SettingsChanged: The folder holds a run with other settings.
        DamagedFile: The table in the folder is cut off or was edited.
    """

    def __init__(
        self, folder: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.table = Table(command, settings.seeds, {}, (), settings=settings.to_dict())
        exists = self.table_path.exists()
        if not resume and (exists or (folder / "weights").exists()):
            what = "holds an earlier run: --resume goes on with it, or choose another folder"
            raise FileExistsError(0, what, str(folder))
        if exists:
            before = Table.load(self.table_path)
            _compare(before.settings, settings.to_dict(), self.table_path)
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
            SettingsChanged: The arm was trained with another recipe.
            FloatingPointError: The loss became infinite.
        """
        recipes = {
            look.recipe: {**arm.recipe.to_dict(), "tested_after": look.step} for look in arm.looks
        }
        if recipes.keys() <= self.table.recipes.keys():
            for name, recipe in recipes.items():
                _compare(self.table.recipes[name], recipe, self.table_path)
            return
        folder = self.folder / "weights" / arm.name
        keep = [look.step for look in arm.looks]
        train(arm.recipe, self.settings.seeds, folder, keep=keep, on_progress=on_training)
        records = [
            record for look in arm.looks for record in self._test(arm, look, folder, on_testing)
        ]
        self.table = replace(
            self.table,
            recipes={**self.table.recipes, **recipes},
            records=(*self.table.records, *records),
        )
        self.table.save(self.table_path)

    def _test(
        self,
        arm: Arm,
        look: Look,
        folder: Path,
        on_testing: Callable[[Look, WeightsKind, int], None],
    ) -> Iterator[Record]:
        for weights in _WEIGHTS:
            heads, recipe = load_heads(weights_path(folder, look.step), weights)
            tests = [_Test(heads.alone(index), look) for index in range(len(heads.seeds))]
            sizes = list(zip(self.settings.sizes, self.settings.sets, strict=True))
            if look.far:
                sizes += zip(self.settings.far, self.settings.far_sets, strict=True)
            for n, sets in sizes:
                if arm.largest is not None and n > arm.largest:
                    continue
                on_testing(look, weights, n)
                far = n in self.settings.far
                by_seed = [test.accuracies(n, sets, far=far) for test in tests]
                for group, shown in look.groups.items():
                    for method in by_seed[0] if shown is None else shown:
                        if method not in by_seed[0]:
                            continue
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


class _Test:
    """The tests of one head that a look asks for, calibrated without labels.

    Args:
        heads: A stack of one.
        look: What to test.
    """

    def __init__(self, heads: Heads, look: Look) -> None:
        self._heads = heads
        names = {name for shown in look.groups.values() for name in shown or ()}
        self._as_trained = AS_TRAINED in names
        if self._as_trained:
            return
        sets = unlabelled_sets(_CALIBRATION_SIZE)
        self._near = Streamed(heads)
        every = None in look.groups.values()
        self._ways = inference_methods(
            self._near.logits(sets), None if every else sorted(names - {CLASS_BLIND})
        )
        if look.far:
            self._exact = Profile(heads)
            self._blind = Profile(heads, class_blind=True)
            self._blind_ways = inference_methods(self._blind.logits(sets), ["exponential"])
        self._far = look.far

    def accuracies(self, n: int, sets: int, *, far: bool) -> dict[str, float]:
        """Accuracy by method; far sizes in double precision, for the few main methods."""
        if self._as_trained:
            return {AS_TRAINED: accuracy_as_trained(self._heads, n, sets)}
        if far:
            ways = {name: self._ways[name] for name in MAIN}
            found = accuracy(self._exact, ways, n, sets)
        else:
            found = accuracy(self._near, self._ways, n, sets)
        if self._far:
            blind = accuracy(self._blind, self._blind_ways, n, sets)
            found[CLASS_BLIND] = blind["exponential"]
        return found


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise SettingsChanged(
                f"{path}: the run there has {name} {before.get(name)}, not {value}; go on with the "
                "same settings, or choose another folder"
            )
