"""Choose the heads that keep their fitted numbers, on data that the fit has not seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharpmax.models._calibration.fit import Term, gradients
from sharpmax.models._calibration.parameters import HeadParameters
from sharpmax.models._calibration.shared import Shared
from sharpmax.models._handle import Sharpened, set_rules
from sharpmax.models._way import evaluation_mode

# Where derivatives are taken between no change (0) and the fitted numbers (1): the two points of
# Gauss-Legendre quadrature, which integrates polynomials of degree 3 exactly.
PATH = (0.5 - 12**-0.5, 0.5 + 12**-0.5)
SHARES = (1.0, 0.4, 0.15)  # shares of the helpful heads that are tried, the most helpful first
SCALES = (1.0, 0.75, 0.5)  # factors of the fitted numbers that are tried


class Losses(NamedTuple):
    """Losses of items, in the unit of the objective."""

    values: list[float]
    contexts: list[int]  # items of one context are not independent

    @property
    def by_context(self) -> NDArray[np.float64]:
        _, where, counts = np.unique(self.contexts, return_inverse=True, return_counts=True)
        return np.asarray(np.bincount(where, self.values) / counts)

    @property
    def mean(self) -> float:
        return float(self.by_context.mean())


class Candidate(NamedTuple):
    """Some heads with a share of their change, measured on the selection split."""

    share: float  # of the helpful heads
    scale: float  # factor of the fitted numbers
    heads: int
    gain: float  # decrease of the objective, in its own unit
    certain: float  # lower bound of that decrease: two standard errors over contexts below it
    rise: float  # increase of the loss on ordinary text, in nats
    harm: float  # upper bound of that increase: two standard errors over contexts above it


class Selection(NamedTuple):
    """The result of the selection."""

    numbers: Tensor  # zero for heads that are not kept
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    contributions: Tensor  # effect of each head on the losses, in nats: [terms, heads]


def select(
    sharpened: Sharpened,
    parameters: HeadParameters,
    numbers: Tensor,
    task: Term,
    text: Term | None = None,
    *,
    tolerance: float,
    on_step: Callable[[int, int], None] = lambda *_: None,
    shared: Shared | None = None,
) -> Selection:
    """Keep the numbers of the heads that help, if together they do.

    The contribution of a head is the integral of the derivative of the loss along the path from no
    change to the fitted numbers. Heads that do more harm than good are reset. Of the rest, shares
    are tried with scales of their change. Keep the candidate that lowers the objective most,
    provided that it lowers it by more than two standard errors, and that the loss on ordinary text
    rises by no more than the tolerance, with two standard errors added. `on_step` is called after
    each pass over the data with its number and the largest possible number of passes. The losses
    of the original model are kept in `shared`.
    """
    kept = shared or Shared()
    terms = [task] if text is None else [task, text]
    passes = count(1)
    most = 1 + len(PATH) + len(SHARES) * len(SCALES)

    def effect(point: float) -> Tensor:
        """Return derivative times change at a point of the path: [terms, heads]."""
        found = [gradients(sharpened, parameters, point * numbers, term)[1] for term in terms]
        on_step(next(passes), most)
        return torch.stack([(derivative * numbers).sum(0) for derivative in found])

    def losses(at: Tensor) -> list[Losses]:
        found = [losses_of(sharpened, parameters, at, term) for term in terms]
        on_step(next(passes), most)
        return found

    def original() -> list[Losses]:
        measure = partial(losses_of, sharpened, parameters, parameters.neutral())
        found = [
            kept.losses(("select", number, sharpened._way.dtype), partial(measure, term))
            for number, term in enumerate(terms)
        ]
        on_step(next(passes), most)
        return found

    contributions = torch.stack([effect(point) for point in PATH]).mean(0)
    before = original()
    good = -sum(term.weight * row for term, row in zip(terms, contributions, strict=True))
    order = [int(head) for head in good.argsort(descending=True) if good[head] > 0]
    tried: dict[tuple[int, float], tuple[Candidate, Tensor]] = {}
    for share in SHARES:
        heads = order[: max(1, round(share * len(order)))]
        for scale in SCALES:
            if not heads or (len(heads), scale) in tried:
                continue
            part = torch.zeros_like(numbers)
            part[:, heads] = scale * numbers[:, heads]
            after = losses(part)
            gain, error = difference(before[0], after[0])
            fell, doubt = (0.0, 0.0) if text is None else difference(before[1], after[1])
            bounds = (gain, gain - 2 * error, -fell, 2 * doubt - fell)
            tried[len(heads), scale] = (Candidate(share, scale, len(heads), *bounds), part)
    holding = [pair for pair in tried.values() if pair[0].certain > 0 and pair[0].harm <= tolerance]
    nothing = (None, torch.zeros_like(numbers))
    chosen, part = max(holding, key=lambda pair: pair[0].gain, default=nothing)
    candidates = tuple(candidate for candidate, _ in tried.values())
    return Selection(part, chosen, candidates, contributions)


def losses_of(
    sharpened: Sharpened, parameters: HeadParameters, numbers: Tensor, term: Term
) -> Losses:
    """Measure all items of a term by its judge or objective, without gradients."""
    measure = term.judge or term.objective
    set_rules(sharpened, parameters.rules(numbers.detach()))
    groups = term.groups()
    with evaluation_mode(sharpened.model, frozen=True), torch.no_grad():
        found = sharpened._way.share.map(lambda it: measure(sharpened.model, it).tolist(), groups)
    contexts: list[int] = []
    for item in chain(*groups):
        # An item that names no context is a context of its own.
        contexts.append(getattr(item, "context", len(contexts)))
    return Losses([*chain(*found)], contexts)


def difference(before: Losses, after: Losses) -> tuple[float, float]:
    """Return the decrease of the mean loss, and its standard error over contexts."""
    fell = before.by_context - after.by_context
    error = fell.std(ddof=1) / len(fell) ** 0.5 if len(fell) > 1 else float("inf")
    return float(fell.mean()), float(error)
