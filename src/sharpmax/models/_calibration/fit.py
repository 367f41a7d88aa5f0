"""Fitting the numbers of a family by gradient, with the weights of the model frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax.models._calibration.objectives import Objective
from sharpmax.models._calibration.parameters import Family
from sharpmax.models._handle import Sharpened


@dataclass(frozen=True)
class Part:
    """One of the things that a fit makes smaller.

    Attributes:
        objective: the losses.
        items: the data.
        batch: how many items, or groups of them that belong together, a step takes.
        weight: of the mean loss, in the sum over all parts.
        key: what items that are taken together have in common; None takes each alone.
        judge: what tells whether a change helps, in the place of the objective; it needs no
            gradients.
    """

    objective: Objective
    items: Sequence[Any]
    batch: int
    weight: float = 1.0
    key: Callable[[Any], Any] | None = None
    judge: Objective | None = None

    def groups(self) -> list[list[Any]]:
        """Items that are taken together."""
        if self.key is None:
            return [[item] for item in self.items]
        found: dict[Any, list[Any]] = {}
        for item in self.items:
            found.setdefault(self.key(item), []).append(item)
        return list(found.values())


@dataclass
class Fit:
    """Numbers that were fitted.

    Attributes:
        numbers: [parts of the family, heads].
        losses: of each step, the mean loss of each part.
    """

    numbers: Tensor
    losses: list[list[float]] = field(default_factory=list)


def fit(
    sharpened: Sharpened,
    family: Family,
    parts: Sequence[Part],
    *,
    steps: int,
    learning_rate: float,
    shrink: float,
    seed: int,
    on_step: Callable[[int, int, list[float]], None] | None = None,
) -> Fit:
    """Adam on the numbers of a family, which begin at "change nothing".

    Args:
        sharpened: the model, whose rules are changed on the way.
        family: what may change.
        parts: what is made smaller.
        steps: how many.
        learning_rate: at the first step; it falls to zero along half a cosine.
        shrink: weight of the sum of the numbers' absolute values. Its slope is one more part of the
            gradient: it pulls numbers towards zero, but few come to stand exactly there.
        seed: of the order of the data.
        on_step: called after each step with its number, the number of steps and the losses.
    """
    result = Fit(family.neutral().requires_grad_())
    numbers = result.numbers
    optimiser = torch.optim.Adam([numbers], lr=learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    orders = [
        _in_turn(part.groups(), np.random.default_rng((seed, i))) for i, part in enumerate(parts)
    ]
    with frozen(sharpened.model):
        for step in range(steps):
            optimiser.zero_grad()
            losses = []
            for part, order in zip(parts, orders, strict=True):
                taken = [next(order) for _ in range(part.batch)]
                losses.append(_accumulate(sharpened, family, numbers, part, taken))
            (shrink * numbers.abs().sum()).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                numbers.copy_(family.project(numbers))
            result.losses.append(losses)
            if on_step is not None:
                on_step(step + 1, steps, losses)
    result.numbers = numbers.detach()
    return result


def gradients(
    sharpened: Sharpened, family: Family, numbers: Tensor, part: Part
) -> tuple[float, Tensor]:
    """The mean loss over all groups of a part, and its derivative by the numbers."""
    at = numbers.detach().clone().requires_grad_()
    with frozen(sharpened.model):
        loss = _accumulate(sharpened, family, at, replace(part, weight=1.0), part.groups())
    assert at.grad is not None
    return loss, at.grad


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode whose weights want no gradients, within a block."""
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    training = [part for part in model.modules() if part.training]
    for weight in wanted:
        weight.requires_grad_(False)
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in wanted:
            weight.requires_grad_(True)
        for module in training:
            module.training = True


def _accumulate(
    sharpened: Sharpened, family: Family, numbers: Tensor, part: Part, groups: list[list[Any]]
) -> float:
    """Add the gradient of the mean loss of some groups, each of which counts once; gives it."""
    total = 0.0
    for items in groups:
        # A graph of its own for each group, so that no two are in memory at a time.
        sharpened.adopt(family.rules(numbers))
        loss = part.objective(sharpened.model, items).mean() / len(groups)
        (part.weight * loss).backward()
        total += loss.item()
    return total


def _in_turn(groups: list[list[Any]], rng: np.random.Generator) -> Iterator[list[Any]]:
    """Groups without end: all of them, in a new order each time."""
    while True:
        for index in rng.permutation(len(groups)):
            yield groups[index]
