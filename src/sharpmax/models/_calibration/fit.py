"""Fit the numbers of the heads by gradient descent, with the weights of the model frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharpmax.models._calibration.objectives import Objective
from sharpmax.models._calibration.parameters import HeadParameters
from sharpmax.models._handle import Sharpened, set_rules
from sharpmax.models._way import evaluation_mode

Groups = list[list[Any]]


@dataclass(frozen=True)
class Term:
    """One term of the total loss: an objective on some data."""

    objective: Objective
    items: Sequence[Any]
    batch: int  # groups of items per step
    weight: float = 1.0
    key: Callable[[Any], Any] | None = None  # items with the same key form a group; None: each one
    judge: Objective | None = None  # decides whether a change helps, instead of the objective

    def groups(self) -> Groups:
        if self.key is None:
            return [[item] for item in self.items]
        found: dict[Any, list[Any]] = {}
        for item in self.items:
            found.setdefault(self.key(item), []).append(item)
        return list(found.values())


LEAST_SHARE = 0.05
"""Share of the decrease of the loss so far that the steps between two checks have to bring."""


@dataclass
class EarlyStopping:
    """End a fit that has nearly converged on data that it is not fitted to.

    The loss is measured before the first step and after every few. If the steps since the last
    check lowered it by less than `LEAST_SHARE` of the whole decrease so far, the fit ends, and the
    numbers with the lowest loss are the result.
    """

    every: int  # steps between checks
    measure: Callable[[Tensor], float]  # the loss at some numbers
    checks: list[tuple[int, float]] = field(default_factory=list)  # steps and losses
    best: Tensor | None = None

    def says_stop(self, step: int, numbers: Tensor) -> bool:
        """Check the numbers after a step, unless it is not yet time."""
        if step % self.every:
            return False
        at = numbers.detach().clone()
        loss = self.measure(at)
        if all(loss < before for _, before in self.checks):
            self.best = at
        self.checks.append((step, loss))
        if len(self.checks) < 2:
            return False
        (_, start), (_, last) = self.checks[0], self.checks[-2]
        return last - loss < LEAST_SHARE * (start - loss) or loss >= last


def fit(
    sharpened: Sharpened,
    parameters: HeadParameters,
    terms: Sequence[Term],
    *,
    steps: int,
    learning_rate: float,
    shrink: float,
    seed: int,
    on_step: Callable[[int, int, list[float]], None] = lambda *_: None,
    stopping: EarlyStopping | None = None,
) -> Tensor:
    """Fit the numbers of the heads with Adam, starting from no change: [kinds, heads].

    `on_step` is called with the step, the number of steps and the mean loss of each term.
    """
    numbers = parameters.neutral().requires_grad_()
    optimiser = torch.optim.Adam([numbers], lr=learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    orders = [
        _shuffled(term.groups(), np.random.default_rng((seed, i))) for i, term in enumerate(terms)
    ]
    if stopping is not None:
        stopping.says_stop(0, numbers)
    with evaluation_mode(sharpened.model, frozen=True), torch.enable_grad():
        for step in range(steps):
            optimiser.zero_grad()
            losses = []
            for term, order in zip(terms, orders, strict=True):
                taken = [next(order) for _ in range(term.batch)]
                losses.append(_accumulate(sharpened, parameters, numbers, term, taken))
            (shrink * numbers.abs().sum()).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                numbers.copy_(parameters.project(numbers))
            on_step(step + 1, steps, losses)
            # At the end there is nothing left to save.
            more = step + 1 < steps
            if stopping is not None and more and stopping.says_stop(step + 1, numbers):
                assert stopping.best is not None
                return stopping.best
    return numbers.detach()


def gradients(
    sharpened: Sharpened, parameters: HeadParameters, numbers: Tensor, term: Term
) -> tuple[float, Tensor]:
    """Return the mean loss over all groups of a term, and its derivative by the numbers."""
    at = numbers.detach().clone().requires_grad_()
    with evaluation_mode(sharpened.model, frozen=True), torch.enable_grad():
        loss = _accumulate(sharpened, parameters, at, replace(term, weight=1.0), term.groups())
    assert at.grad is not None
    return loss, at.grad


def _accumulate(
    sharpened: Sharpened, parameters: HeadParameters, numbers: Tensor, term: Term, groups: Groups
) -> float:
    """Add the gradient of the mean loss over groups, each of which counts once; return the loss."""

    def derived(items: list[Any]) -> tuple[float, Tensor]:
        # One graph per group, so that only one is in memory at a time.
        at = numbers.detach().requires_grad_()
        set_rules(sharpened, parameters.rules(at))
        loss = term.objective(sharpened.model, items).mean() / len(groups)
        (gradient,) = torch.autograd.grad(term.weight * loss, at, materialize_grads=True)
        return loss.item(), gradient

    total = 0.0
    # In the order of the groups, so that any number of ranks gives the same sums.
    for loss, gradient in sharpened._way.share.map(derived, groups):
        total += loss
        numbers.grad = gradient if numbers.grad is None else numbers.grad + gradient
    return total


def _shuffled(groups: Groups, rng: np.random.Generator) -> Iterator[list[Any]]:
    """Yield groups without end: all of them, in a new order each time."""
    while True:
        for index in rng.permutation(len(groups)):
            yield groups[index]
