"""The whole experiment: train the heads of each arm, test them, and write the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.common import study
from experiments.common.timing import thread_count
from experiments.max_retrieval.anatomy import KIND, dissect, load_anatomy
from experiments.max_retrieval.arms import AS_TRAINED, CLASS_BLIND, Arm, Checkpoint
from experiments.max_retrieval.evaluation import (
    Answering,
    Streamed,
    accuracy,
    accuracy_as_trained,
    unlabelled_sets,
)
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.inference import MAIN, inference_methods
from experiments.max_retrieval.measure import load_figures, measure_figures, save_figures
from experiments.max_retrieval.profile import Profile
from experiments.max_retrieval.records import Group, Record, Table, WeightsKind
from experiments.max_retrieval.training import Progress, load_heads, train, weights_path
from sharpmax._files import write_sealed

__all__ = ["Settings", "Study", "evaluate_heads"]

_RECORDS = "max-retrieval records, format 2"
_Test = Callable[[int, int], dict[str, float]]
_BLIND_SETS = 1024
_WEIGHTS: tuple[WeightsKind, ...] = ("last", "averaged")


@dataclass(frozen=True)
class Settings:
    """What all arms of a run have in common.

    Attributes:
        seeds: Seeds of the heads.
        steps: Steps of the standard training; other trainings are multiples of it.
        sizes: Numbers of items in the test.
        sets: Test sets at each of the sizes.
        far: Further sizes, tested in double precision.
        far_sets: Test sets at each of these.
    """

    seeds: tuple[int, ...]
    steps: int
    sizes: tuple[int, ...]
    sets: tuple[int, ...]
    far: tuple[int, ...] = ()
    far_sets: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as it comes back from JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


class Study(study.Study[Table]):
    """Run max retrieval in a folder.

    The folder holds `table.json`, which grows arm by arm, and `weights/ARM/`.

    Args:
        folder: Folder of the run.
        settings: What all arms have in common.
        command: The command that makes this run.
        resume: Continue the run in the folder. Without it, a folder with a run is refused.
    """

    def __init__(
        self, folder: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> None:
        super().__init__(folder, settings, command, Table, resume=resume)
        self.settings = settings

    def run(
        self,
        arm: Arm,
        on_training: Callable[[Progress], None] = lambda _: None,
        on_testing: Callable[[Checkpoint, WeightsKind, int], None] = lambda *_: None,
    ) -> None:
        """Train and test an arm, unless the table has it, and add it to the table.

        Args:
            arm: The arm.
            on_training: Called during training.
            on_testing: Called before each size of each test.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
            FloatingPointError: The loss became infinite.
        """
        if self.misses(arm):
            self.add(arm.recipes, self.measure(arm, on_training, on_testing))

    def misses(self, arm: Arm) -> bool:
        """Tell whether the table lacks an arm.

        Raises:
            SettingsChangedError: The arm was trained with another recipe.
        """
        return not self.has(arm.recipes)

    def measure(
        self,
        arm: Arm,
        on_training: Callable[[Progress], None] = lambda _: None,
        on_testing: Callable[[Checkpoint, WeightsKind, int], None] = lambda *_: None,
    ) -> list[Record]:
        """Train and test an arm, as far as its folder lacks weights and records."""
        folder = self.folder / "weights" / arm.name
        keep = [checkpoint.step for checkpoint in arm.checkpoints]
        train(arm.recipe, self.settings.seeds, folder, keep=keep, on_progress=on_training)
        records: list[Record] = []
        for checkpoint in arm.checkpoints:
            for weights in _WEIGHTS:

                def test(
                    checkpoint: Checkpoint = checkpoint, weights: WeightsKind = weights
                ) -> list[Any]:
                    heads, _ = load_heads(weights_path(folder, checkpoint.step), weights)
                    one = [heads.alone(index) for index in range(len(heads.seeds))]
                    found = evaluate_heads(arm, checkpoint, weights, one, self.settings, on_testing)
                    return [asdict(record) for record in found]

                # A test takes minutes, so its records are kept until the arm is complete.
                path = folder / f"records-{checkpoint.step}-{weights}.json"
                records += map(Record.from_dict, self.kept(path, _RECORDS, test))
        return records

    def measure_figures(self, arm: Arm) -> dict[str, Any]:
        """Measure what the figures show, on the first seed and the averaged weights of an arm.

        Args:
            arm: One that was run. Of several checkpoints, the one of the comparison at inference
                is measured.

        Returns:
            The measurements, which are also in `figures.json`.
        """
        path = self.folder / "figures.json"
        if not path.exists():
            compared = [each for each in arm.checkpoints if "inference" in each.groups]
            step = (compared or arm.checkpoints)[-1].step
            heads, _ = load_heads(self._weights(arm, step), "averaged")
            data = measure_figures(heads.alone(0), self.settings.sizes, self.table.command)
            save_figures(path, data)
        return load_figures(path)

    def dissect(self, arm: Arm) -> dict[str, Any]:
        """Measure slope and offsets of the logits of an arm, and add them to `anatomy.json`.

        Args:
            arm: One that was run; it is skipped if it was not trained with softmax.

        Returns:
            The content of the file: for each recipe and kind of weights the slope, the deviation of
            the offsets, and the accuracy that they predict for hard attention, one number per seed.
        """
        path = self.folder / "anatomy.json"
        recipes = load_anatomy(path)["recipes"] if path.exists() else {}
        for checkpoint in arm.checkpoints:
            if arm.recipe.normaliser != "softmax" or checkpoint.recipe in recipes:
                continue
            entry: dict[str, Any] = {}
            for weights in _WEIGHTS:
                heads, _ = load_heads(self._weights(arm, checkpoint.step), weights)
                seeds = [dissect(heads.alone(index)) for index in range(len(heads.seeds))]
                entry[weights] = {
                    "slope": [anatomy.slope for anatomy in seeds],
                    "deviation": [anatomy.deviation for anatomy in seeds],
                    "predicted": {
                        str(n): [anatomy.predicted_accuracy(n) for anatomy in seeds]
                        for n in self.settings.sizes
                    },
                }
            recipes[checkpoint.recipe] = entry
        data = {"command": self.table.command, "recipes": recipes}
        write_sealed(path, KIND, data)
        return data

    def _weights(self, arm: Arm, step: int) -> Path:
        return weights_path(self.folder / "weights" / arm.name, step)


def evaluate_heads(
    arm: Arm,
    checkpoint: Checkpoint,
    weights: WeightsKind,
    heads: Sequence[Heads],
    settings: Settings,
    on_testing: Callable[[Checkpoint, WeightsKind, int], None] = lambda *_: None,
) -> Iterator[Record]:
    """Test heads as a checkpoint asks.

    Args:
        arm: The arm of the heads.
        checkpoint: What to test.
        weights: The kind of weights that the heads have.
        heads: One stack of one head per seed.
        settings: Sizes and numbers of sets.
        on_testing: Called before each size.

    Yields:
        One record per size, method and group.
    """
    sets_of = dict(zip(settings.sizes, settings.sets, strict=True))
    near = [(n, sets_of[n]) for n in arm.sizes(settings.sizes)]
    far = list(zip(settings.far, settings.far_sets, strict=True))
    passes = [(near, [_near(head, checkpoint) for head in heads])]
    if weights == "averaged" and checkpoint.far:
        passes.append((far, [_far(head) for head in heads]))
    if weights == "averaged" and checkpoint.blind:
        # Class-blind logits cost the most: no more sets than at large sizes.
        sizes = [(n, min(sets, _BLIND_SETS)) for n, sets in near]
        passes.append((sizes + (far if checkpoint.far else []), [_blind(head) for head in heads]))
    for sizes, tests in passes:
        for n, sets in sizes:
            on_testing(checkpoint, weights, n)
            by_seed = _by_seed(tests, n, sets)
            for method in by_seed[0]:
                for group in _groups(checkpoint, method):
                    yield Record(
                        method=arm.recipe.normaliser if method == AS_TRAINED else method,
                        weights=weights,
                        trained_with=arm.recipe.normaliser,
                        recipe=checkpoint.recipe,
                        group=group,
                        n=n,
                        sets=sets,
                        accuracy=tuple(by_method[method] for by_method in by_seed),
                    )


def _by_seed(tests: Sequence[_Test], n: int, sets: int) -> list[dict[str, float]]:
    """Return accuracies by method, for each seed."""
    # Operations are small: one thread per seed is faster than several threads per operation.
    with thread_count(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda test: test(n, sets), tests))


def _groups(checkpoint: Checkpoint, method: str) -> list[Group]:
    """Return the parts of the table that show a method."""
    if method in CLASS_BLIND.values():
        return ["beyond"]
    shown = checkpoint.groups.items()
    return [group for group, methods in shown if methods is None or method in methods]


def _near(heads: Heads, checkpoint: Checkpoint) -> _Test:
    """Test what a checkpoint asks for, in single precision."""
    names = {name for shown in checkpoint.groups.values() for name in shown or ()}
    if AS_TRAINED in names:
        return lambda n, sets: {AS_TRAINED: accuracy_as_trained(heads, n, sets)}
    head = Streamed(heads)
    every = None in checkpoint.groups.values()
    ways = inference_methods(_calibration(head), None if every else sorted(names))
    return lambda n, sets: accuracy(head, ways, n, sets)


def _far(heads: Heads) -> _Test:
    """Test the main methods in double precision."""
    head = Profile(heads)
    ways = inference_methods(_calibration(head), MAIN)
    return lambda n, sets: accuracy(head, ways, n, sets)


def _blind(heads: Heads) -> _Test:
    """Test methods on logits without what a class adds to them."""
    head = Profile(heads, class_blind=True)
    found = inference_methods(_calibration(head), list(CLASS_BLIND))
    ways = {CLASS_BLIND[name]: way for name, way in found.items()}
    return lambda n, sets: accuracy(head, ways, n, sets)


def _calibration(head: Answering) -> Tensor:
    """Return logits of sets without labels, with no more items than training had."""
    return head.logits(unlabelled_sets(16))
