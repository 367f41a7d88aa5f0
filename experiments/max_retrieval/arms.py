"""The arms of the experiment: heads to train, and what to test them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.max_retrieval.inference import MAIN
from experiments.max_retrieval.methods import normaliser_names
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.records import Group
from experiments.max_retrieval.task import NearTies

__all__ = ["AS_TRAINED", "CLASS_BLIND", "Arm", "Look", "all_arms"]

AS_TRAINED = "as trained"
"""The method that is whatever the heads were trained with."""
CLASS_BLIND = {name: f"{name}, class-blind" for name in ("exponential", "hard")}
"""Methods that take from logits what a class adds to them, and then sharpen, by how."""


@dataclass(frozen=True)
class Look:
    """A test of the weights of an arm after a step.

    Attributes:
        step: After which step.
        recipe: Name of what was trained up to there.
        groups: The parts of the table that it belongs to, each with the methods that it shows: None
            is every method at inference, `AS_TRAINED` what the heads were trained with.
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
        name: Of the arm, and of its folder.
        recipe: How they are trained.
        looks: When and how they are tested.
        largest: The largest size that they are tested at; None is all sizes.
        thin: Whether a size is left out if they are tested at its half and at its double.
    """

    name: str
    recipe: Recipe
    looks: tuple[Look, ...]
    largest: int | None = None
    thin: bool = False

    def sizes(self, every: Sequence[int]) -> list[int]:
        """The sizes that they are tested at, of every size of a run in ascending order."""
        chosen: list[int] = []
        for n in every:
            between = self.thin and n / 2 in chosen and 2 * n in every
            if not between and (self.largest is None or n <= self.largest):
                chosen.append(n)
        return chosen


def all_arms(steps: int) -> list[Arm]:
    """Every arm of the experiment, the most important first.

    Args:
        steps: Batches of a standard training.
    """
    return [_standard(steps), *_beyond(steps), *_details(steps), *_trained(steps)]


def steps_name(steps: int) -> str:
    """A number of steps in short: 40k for 40,000."""
    return f"{steps // 1000}k" if steps % 1000 == 0 else str(steps)


def _longer(steps: int) -> int:
    """Batches of a long training: 100,000 where the standard is 40,000."""
    return steps * 5 // 2


def _shorter(steps: int) -> int:
    """Batches of a training that is one of many: 10,000 where the standard is 40,000."""
    return steps // 4


def _standard(steps: int) -> Arm:
    """Plain softmax. With a constant learning rate, one training is tested after many steps."""
    groups: dict[int, dict[Group, tuple[str, ...] | None]] = {
        _shorter(steps): {"trained": ("softmax",), "training": MAIN},
        steps // 2: {"training": MAIN, "beyond": MAIN},
        steps: {"inference": None, "training": MAIN, "beyond": MAIN},
        _longer(steps): {"training": MAIN, "beyond": MAIN},
    }
    looks = (
        Look(step, f"standard-{steps_name(step)}", of_look, blind=step == steps)
        for step, of_look in groups.items()
    )
    return Arm("standard", Recipe(steps=_longer(steps)), tuple(looks))


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
            (Look(half, f"cosine+{few}", cosine),),
            thin=True,
        ),
        *(
            Arm(name, recipe, (Look(half, name, {"training": MAIN}),), thin=True)
            for name, recipe in decays.items()
        ),
    ]


def _trained(steps: int) -> list[Arm]:
    """Alternatives to softmax, in training and in the test: fewer steps, as there are many."""
    arms = []
    few = _shorter(steps)
    for name in normaliser_names():
        if name != "softmax":
            look = Look(few, f"with-{name}", {"trained": (AS_TRAINED,)})
            # Selection compares every item with every other.
            largest = 4096 if name == "selective" else None
            arms.append(Arm(f"with-{name}", Recipe(name, steps=few), (look,), largest, thin=True))
    return arms


def _beyond(steps: int) -> list[Arm]:
    """Recipes that keep the head right far beyond the size of its training sets.

    Each lever alone and the two together are trained for half the standard steps; what is best is
    also trained for long.
    """
    ties, half = NearTies(), steps // 2
    alone = Recipe(steps=half, ties=ties)
    together = Recipe(steps=half, ties=ties, schedule="cosine")
    longer = Recipe(steps=_longer(steps), ties=ties, schedule="cosine")
    few, many = (f"{steps_name(count)}-steps" for count in (half, longer.steps))
    name = "near-ties+cosine"
    beyond: dict[Group, tuple[str, ...] | None] = {"beyond": MAIN}
    return [
        Arm(name, together, (Look(half, f"{name}+{few}", beyond, blind=True),)),
        Arm(
            f"{name}+{many}",
            longer,
            (Look(longer.steps, f"{name}+{many}", beyond, blind=True, far=True),),
        ),
        Arm("near-ties", alone, (Look(half, f"near-ties+{few}", beyond),), thin=True),
    ]
