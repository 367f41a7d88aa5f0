"""The whole experiment: train the heads of each arm, test them, and write the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpmax.lab.max_retrieval.arms import AS_TRAINED, Arm, Look
from sharpmax.lab.max_retrieval.evaluation import Streamed, Weigh, accuracy, accuracy_as_trained
from sharpmax.lab.max_retrieval.head import Heads
from sharpmax.lab.max_retrieval.inference import inference_methods
from sharpmax.lab.max_retrieval.records import Record, Table, WeightsKind
from sharpmax.lab.max_retrieval.training import (
    Progress,
    SettingsChanged,
    load_heads,
    train,
    weights_path,
)

__all__ = ["Settings", "Study"]

_WEIGHTS: tuple[WeightsKind, ...] = ("last", "averaged")


@dataclass(frozen=True)
class Settings:
    """What all arms of a run have in common.

    Attributes:
        seeds: The seeds of the heads.
        steps: Batches of a standard training; other trainings are multiples of it.
        sizes: Numbers of items to test at.
        sets: Test sets at each of the sizes.
    """

    seeds: tuple[int, ...]
    steps: int
    sizes: tuple[int, ...]
    sets: tuple[int, ...]

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
            alone = [heads.alone(index) for index in range(len(heads.seeds))]
            ways = [_ways(one, look) for one in alone]
            for n, sets in zip(self.settings.sizes, self.settings.sets, strict=True):
                if arm.largest is not None and n > arm.largest:
                    continue
                on_testing(look, weights, n)
                by_seed = [
                    accuracy(Streamed(one), way, n, sets) if way else _as_trained(one, n, sets)
                    for one, way in zip(alone, ways, strict=True)
                ]
                for group, shown in look.groups.items():
                    for method in by_seed[0] if shown is None else shown:
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


def _ways(heads: Heads, look: Look) -> Mapping[str, Sequence[Weigh]]:
    """The methods at inference that a look asks for; none if it asks for the heads as trained."""
    names: set[str] = set()
    for shown in look.groups.values():
        if shown is None:
            return inference_methods(heads)
        names.update(shown)
    return {} if AS_TRAINED in names else inference_methods(heads, sorted(names))


def _as_trained(heads: Heads, n: int, sets: int) -> dict[str, float]:
    return {AS_TRAINED: accuracy_as_trained(heads, n, sets)}


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise SettingsChanged(
                f"{path}: the run there has {name} {before.get(name)}, not {value}; go on with the "
                "same settings, or choose another folder"
            )
