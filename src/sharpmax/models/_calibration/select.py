"""Which heads keep the numbers that were fitted for them, by data that the fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharpmax.models._calibration.fit import Part, frozen, gradients
from sharpmax.models._calibration.parameters import Family
from sharpmax.models._handle import Sharpened

PATH = (0.5 - 12**-0.5, 0.5 + 12**-0.5)
"""Where between "change nothing" and the fitted numbers derivatives are taken: the two points of
Gauss and Legendre, whose mean is the integral of any polynomial of degree 3."""

SHARES = (1.0, 0.4, 0.15)
"""How many of the heads that help are tried, those that help most first."""

SCALES = (1.0, 0.75, 0.5)
"""By what the numbers are multiplied."""


class Losses(NamedTuple):
    """Losses of items, in nats, or what else they are judged by.

    Attributes:
        values: one an item.
        contexts: what each item belongs to; items of one context are not independent.
    """

    values: list[float]
    contexts: list[int]

    @property
    def by_context(self) -> NDArray[np.float64]:
        """The mean loss in each context, in the order of their numbers."""
        _, where, counts = np.unique(self.contexts, return_inverse=True, return_counts=True)
        means: NDArray[np.float64] = np.bincount(where, self.values) / counts
        return means

    @property
    def mean(self) -> float:
        """Over contexts: one with many questions counts no more than one with a single one."""
        return float(self.by_context.mean())


class Candidate(NamedTuple):
    """Some of the heads, with some of their change, on the second part of the data.

    Attributes:
        share: of the heads that help, those that help most.
        scale: what the fitted numbers were multiplied by.
        heads: how many heads that is.
        gain: by how much the objective fell, in its own unit.
        certain: by how much at least, with two standard errors over contexts.
        rise: by how much the loss on ordinary text rose, in nats.
        harm: by how much at most, with two standard errors over contexts.
    """

    share: float
    scale: float
    heads: int
    gain: float
    certain: float
    rise: float
    harm: float


@dataclass(frozen=True)
class Selection:
    """What the second part of the data says.

    Attributes:
        numbers: those that are kept; zero for all other heads.
        chosen: the candidate that they are, or None where none held.
        candidates: all that were tried.
        contributions: what each head did to the objective and to the loss on ordinary text, in
            nats: [parts of the data, heads].
    """

    numbers: Tensor
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    contributions: Tensor


def select(
    sharpened: Sharpened, family: Family, numbers: Tensor, task: Part, text: Part | None,
    *, tolerance: float, on_step: Callable[[int, int], None] = lambda *_: None,
) -> Selection:  # fmt: skip
    """Keep the numbers of the heads that help, if together they do.

    What a head does is the integral of the derivative of the loss along the way from "change
    nothing" to the fitted numbers, over two points; over heads these add up to the whole change.
    Heads that do more harm than good are set back. Of the rest, the first 100, 40 and 15 percent
    are tried, with all, 0.75 and 0.5 of their change. That is kept which lowers the objective most
    among those that lower it by more than two standard errors, and whose rise of the loss on
    ordinary text is no more than the tolerance even with two standard errors added: other texts
    will be further from these than these are from the fitted ones.

    Args:
        sharpened: the model.
        family: what the numbers are of.
        numbers: as they were fitted.
        task: the objective on the second part of the data.
        text: ordinary text that has not been seen either; None for no guard.
        tolerance: nats by which the loss on it may rise.
        on_step: called after each pass over the data with its number and that of all that may
            come; there may be fewer.
    """
    guards = [task] if text is None else [task, text]
    passes = count(1)
    most = 1 + len(PATH) + len(SHARES) * len(SCALES)

    def at(point: float) -> Tensor:
        """What the numbers do at a point of the way: [parts of the data, heads]."""
        found = [gradients(sharpened, family, point * numbers, part)[1] for part in guards]
        on_step(next(passes), most)
        return torch.stack([(derivative * numbers).sum(0) for derivative in found])

    contributions = torch.stack([at(point) for point in PATH]).mean(0)
    before = [evaluate(sharpened, family, family.neutral(), part) for part in guards]
    on_step(next(passes), most)
    good = -sum(p.weight * row for p, row in zip(guards, contributions, strict=True))
    order = [int(head) for head in good.argsort(descending=True) if good[head] > 0]
    tried: dict[tuple[int, float], tuple[Candidate, Tensor]] = {}
    for share in SHARES:
        heads = order[: max(1, round(share * len(order)))]
        for scale in SCALES:
            if not heads or (len(heads), scale) in tried:
                continue
            kept = torch.zeros_like(numbers)
            kept[:, heads] = scale * numbers[:, heads]
            after = [evaluate(sharpened, family, kept, part) for part in guards]
            on_step(next(passes), most)
            gain, error = difference(before[0], after[0])
            fell, doubt = (0.0, 0.0) if text is None else difference(before[1], after[1])
            candidate = Candidate(
                share, scale, len(heads), gain, gain - 2 * error, -fell, 2 * doubt - fell
            )
            tried[len(heads), scale] = (candidate, kept)
    holding = [pair for pair in tried.values() if pair[0].certain > 0 and pair[0].harm <= tolerance]
    chosen, kept = max(
        holding, key=lambda pair: pair[0].gain, default=(None, torch.zeros_like(numbers))
    )
    candidates = tuple(candidate for candidate, _ in tried.values())
    return Selection(kept, chosen, candidates, contributions)


def evaluate(sharpened: Sharpened, family: Family, numbers: Tensor, part: Part) -> Losses:
    """The losses of all items of a part, or what it is judged by, without gradients."""
    measure = part.judge or part.objective
    sharpened.adopt(family.rules(numbers.detach()))
    values: list[float] = []
    contexts: list[int] = []
    with frozen(sharpened.model), torch.no_grad():
        for items in part.groups():
            values += measure(sharpened.model, items).tolist()
            contexts += _contexts(items, len(contexts))
    return Losses(values, contexts)


def difference(before: Losses, after: Losses) -> tuple[float, float]:
    """By how much the mean loss fell, and the standard error of that over contexts."""
    fell = before.by_context - after.by_context
    if len(fell) < 2:
        return float(fell.mean()), float("inf")
    return float(fell.mean()), float(fell.std(ddof=1) / len(fell) ** 0.5)


def _contexts(items: Sequence[Any], first: int) -> list[int]:
    """The context of each item; one that names none is a context of its own."""
    return [getattr(item, "context", first + index) for index, item in enumerate(items)]
