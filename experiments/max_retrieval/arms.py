"""The arms of the experiment: which heads to train, and how to test them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.max_retrieval.inference import MAIN
from experiments.max_retrieval.recipe import Recipe, normaliser_names
from experiments.max_retrieval.records import Group
from experiments.max_retrieval.task import NearTies

__all__ = ["AS_TRAINED", "CLASS_BLIND", "Arm", "Checkpoint", "all_arms"]

AS_TRAINED = "as trained"
"""The method that the heads were trained with."""
CLASS_BLIND = {name: f"{name}, class-blind" for name in ("exponential", "hard")}
"""Methods that remove from the logits what a class adds to them, by the method applied next."""


@dataclass(frozen=True)
class Checkpoint:
    """A test of the weights of an arm after a step.

    Attributes:
        step: The step.
        recipe: Name of the training up to that step.
        groups: The parts of the table that it belongs to, each with the methods that it shows: None
            is every method at inference, `AS_TRAINED` the method of the training.
        blind: Whether averaged weights are also tested class-blind.
        far: Whether averaged weights are also tested at sizes that need double precision.
    """

    step: int
    recipe: str
    groups: dict[Group, tuple[str, ...] | None]
    blind: bool = False
    far: bool = False


@dataclass(frozen=True)
class Arm:
    """Heads that are trained together.

    Attributes:
        name: Name of the arm and of its folder.
        recipe: How the heads are trained.
        checkpoints: When and how they are tested.
        largest: The largest size of the test; None is all sizes.
        thin: Whether to leave out a size if its half and its double are tested.
    """

    name: str
    recipe: Recipe
    checkpoints: tuple[Checkpoint, ...]
    largest: int | None = None
    thin: bool = False

    @property
    def recipes(self) -> dict[str, dict[str, Any]]:
        """How the heads of each checkpoint are trained: plain data by the name of the recipe."""
        recipe = self.recipe.to_dict()
        return {each.recipe: {**recipe, "tested_after": each.step} for each in self.checkpoints}

    def sizes(self, every: Sequence[int]) -> list[int]:
        """Return the sizes of the test, from the sizes of a run in ascending order."""
        chosen: list[int] = []
        for n in every:
            between = self.thin and n / 2 in chosen and 2 * n in every
            if not between and (self.largest is None or n <= self.largest):
                chosen.append(n)
        return chosen


def all_arms(steps: int) -> list[Arm]:
    """Return every arm of the experiment, the most important first.

    Args:
        steps: Steps of the standard training.
    """
    return [_standard(steps), *_beyond(steps), *_details(steps), *_trained(steps)]


def steps_name(steps: int) -> str:
    """Abbreviate a number of steps: 40k for 40,000."""
    return f"{steps // 1000}k" if steps % 1000 == 0 else str(steps)


def _longer(steps: int) -> int:
    """Steps of a long training: 100,000 if the standard is 40,000."""
    return steps * 5 // 2


def _shorter(steps: int) -> int:
    """Steps of a training that is one of many: 10,000 if the standard is 40,000."""
    return steps // 4


def _standard(steps: int) -> Arm:
    """Plain softmax. Its learning rate is constant, so one training serves several step counts."""
    groups: dict[int, dict[Group, tuple[str, ...] | None]] = {
        _shorter(steps): {"trained": ("softmax",), "training": MAIN},
        steps // 2: {"training": MAIN, "beyond": MAIN},
        steps: {"inference": None, "training": MAIN, "beyond": MAIN},
        _longer(steps): {"training": MAIN, "beyond": MAIN},
    }
    checkpoints = (
        Checkpoint(step, f"standard-{steps_name(step)}", of_step, blind=step == steps)
        for step, of_step in groups.items()
    )
    return Arm("standard", Recipe(steps=_longer(steps)), tuple(checkpoints))


def _details(steps: int) -> list[Arm]:
    """Details of the training of plain softmax."""
    half = steps // 2
    few = f"{steps_name(half)}-steps"
    cosine: dict[Group, tuple[str, ...] | None] = {"training": MAIN, "beyond": MAIN}
    decays = {
        "decay-0": Recipe(steps=half, weight_decay=0.0),
        "decay-1e-4": Recipe(steps=half, weight_decay=1e-4, decoupled=False),
        "decay-1e-3": Recipe(steps=half, weight_decay=1e-3, decoupled=False),
    }
    return [
        Arm(
            "cosine",
            Recipe(steps=half, schedule="cosine"),
            (Checkpoint(half, f"cosine+{few}", cosine),),
            thin=True,
        ),
        *(
            Arm(name, recipe, (Checkpoint(half, name, {"training": MAIN}),), thin=True)
            for name, recipe in decays.items()
        ),
    ]


def _trained(steps: int) -> list[Arm]:
    """Alternatives to softmax in training and test, with fewer steps because there are many."""
    arms = []
    few = _shorter(steps)
    for name in normaliser_names():
        if name != "softmax":
            checkpoint = Checkpoint(few, f"with-{name}", {"trained": (AS_TRAINED,)})
            # Selection compares every item with every other.
            largest = 4096 if name == "selective" else None
            arms.append(
                Arm(f"with-{name}", Recipe(name, steps=few), (checkpoint,), largest, thin=True)
            )
    return arms


def _beyond(steps: int) -> list[Arm]:
    """Recipes that keep a head accurate far beyond the size of its training sets.

    Each change alone and both together have half the standard steps; the best also has many.
    """
    ties, half = NearTies(), steps // 2
    alone = Recipe(steps=half, ties=ties)
    together = Recipe(steps=half, ties=ties, schedule="cosine")
    longer = Recipe(steps=_longer(steps), ties=ties, schedule="cosine")
    few, many = (f"{steps_name(count)}-steps" for count in (half, longer.steps))
    name = "near-ties+cosine"
    beyond: dict[Group, tuple[str, ...] | None] = {"beyond": MAIN}
    return [
        Arm(name, together, (Checkpoint(half, f"{name}+{few}", beyond, blind=True),)),
        Arm(
            f"{name}+{many}",
            longer,
            (Checkpoint(longer.steps, f"{name}+{many}", beyond, blind=True, far=True),),
        ),
        Arm("near-ties", alone, (Checkpoint(half, f"near-ties+{few}", beyond),), thin=True),
    ]
