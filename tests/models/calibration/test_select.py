from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrated_model import distance, opened, some_windows, tiny
from sharpmax.models import Window
from sharpmax.models._calibration.fit import Term
from sharpmax.models._calibration.select import (
    PATH,
    SCALES,
    SHARES,
    Losses,
    difference,
    losses_of,
    select,
)

HELPFUL, HARMFUL = 2, 1
"""Heads, counted over both layers: the first is spoilt, and doubling its logits mends it."""


def _numbers() -> Tensor:
    numbers = torch.zeros(1, 4)
    numbers[0, HELPFUL] = np.log(2.0)
    numbers[0, HARMFUL] = np.log(3.0)
    return numbers


def _task(windows: list[Window] | None = None) -> Term:
    return Term(distance, windows or some_windows(12, seed=5), 4)


def test_a_head_that_helps_is_kept_and_one_that_harms_is_set_back() -> None:
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        found = select(sharpened, parameters, _numbers(), _task(), None, tolerance=0.0)
        assert found.chosen is not None
        assert found.chosen.heads == 1
        assert found.chosen.scale == 1.0
        assert 0 < found.chosen.certain < found.chosen.gain
        assert found.numbers.nonzero().tolist() == [[0, HELPFUL]]
        assert float(found.numbers[0, HELPFUL]) == pytest.approx(np.log(2.0))
        after = losses_of(sharpened, parameters, found.numbers, _task()).mean
        before = losses_of(sharpened, parameters, parameters.neutral(), _task()).mean
    assert before - after == pytest.approx(found.chosen.gain)
    assert after == pytest.approx(0.0, abs=1e-6)
    assert float(found.contributions[0, HELPFUL]) < 0 < float(found.contributions[0, HARMFUL])
    # Heads without a change contribute nothing.
    assert found.contributions[0, [0, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["constant", "gain", "constant+gain", "entropy"])
def test_contributions_add_up_to_the_whole_change(name: Any) -> None:
    torch.manual_seed(0)
    with opened(tiny(1, 0, 0.5), name) as (sharpened, parameters):
        numbers = parameters.project(0.3 * torch.rand(parameters.neutral().shape))
        task = _task()
        found = select(sharpened, parameters, numbers, task, None, tolerance=0.0)
        change = losses_of(sharpened, parameters, numbers, task).mean
        change -= losses_of(sharpened, parameters, parameters.neutral(), task).mean
    assert float(found.contributions.sum()) == pytest.approx(change, rel=0.02)


def _guard() -> Term:
    """Text whose loss is another function of the logits; it has no say in the choice of heads."""

    def loss(model: Any, items: Sequence[Window]) -> Tensor:
        logits = model(input_ids=torch.tensor([list(item.ids) for item in items])).logits
        return 10.0 * logits.mean((1, 2))

    return Term(loss, some_windows(6, seed=9), 2, weight=0.0)


def test_no_more_is_kept_than_ordinary_text_allows() -> None:
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        free = select(sharpened, parameters, _numbers(), _task(), _guard(), tolerance=float("inf"))
        assert free.chosen is not None
        harms = sorted(candidate.harm for candidate in free.candidates)
        assert len(harms) == len(SCALES), "one head, at each scale"
        assert harms[0] != harms[1]
        # Between the least and the next: only one scale is allowed.
        tolerance = (harms[0] + harms[1]) / 2
        some = select(sharpened, parameters, _numbers(), _task(), _guard(), tolerance=tolerance)
        none = select(
            sharpened, parameters, _numbers(), _task(), _guard(), tolerance=harms[0] - 1e-3
        )
        # Bounds are two standard errors away.
        before, whole = parameters.neutral(), free.numbers / free.chosen.scale
        for candidate in free.candidates:
            for term, near, far in (
                (_task(), candidate.gain, candidate.certain),
                (_guard(), -candidate.rise, -candidate.harm),
            ):
                pair = (
                    losses_of(sharpened, parameters, numbers, term)
                    for numbers in (before, candidate.scale * whole)
                )
                fell, error = difference(*pair)
                assert (near, far) == pytest.approx((fell, fell - 2 * error))
    assert free.chosen.gain == max(candidate.gain for candidate in free.candidates)
    assert some.chosen is not None
    assert some.chosen.harm == pytest.approx(harms[0])
    # A rise is not all that has to be feared: there are few texts.
    assert all(candidate.harm > candidate.rise for candidate in free.candidates)
    assert none.chosen is None
    assert not none.numbers.any()
    assert len(none.candidates) == len(SCALES)
    assert none.contributions.shape == (2, 4)


def test_what_may_be_chance_is_not_kept() -> None:
    windows = some_windows(12, seed=5)
    signs = torch.tensor([1.0, -1.0] * 6)

    def noisy(model: Any, items: Sequence[Window]) -> Tensor:
        """Half of the contexts gain a lot, the other half loses nearly as much."""
        far = distance(model, items)
        return torch.stack([far[i] * signs[item.context] for i, item in enumerate(items)])

    term = Term(noisy, windows, 4)
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        found = select(sharpened, parameters, _numbers(), term, None, tolerance=1.0)
    assert found.chosen is None
    assert all(candidate.certain <= 0 for candidate in found.candidates)


def test_nothing_to_keep_and_steps_are_told() -> None:
    told: list[tuple[int, int]] = []
    with opened(tiny(), "constant") as (sharpened, parameters):
        found = select(
            sharpened, parameters, parameters.neutral(), _task(), None, tolerance=0.0,
            on_step=lambda *step: told.append(step),
        )  # fmt: skip
    assert found.chosen is None
    assert found.candidates == ()
    most = 1 + len(PATH) + len(SHARES) * len(SCALES)
    assert told == [(step, most) for step in range(1, len(PATH) + 2)]


def test_the_error_of_a_difference_is_over_contexts() -> None:
    rng = np.random.default_rng(0)
    gains = rng.standard_normal(400)
    before = Losses((5 + gains).tolist(), list(range(400)))
    after = Losses([5.0] * 400, list(range(400)))
    mean, error = difference(before, after)
    assert mean == pytest.approx(gains.mean())
    assert error == pytest.approx(gains.std(ddof=1) / 20, rel=0.01)
    # The same four times over in each context is no more than once.
    four = [contexts for contexts in range(400) for _ in range(4)]
    repeated = difference(
        Losses(np.repeat(before.values, 4).tolist(), four),
        Losses(np.repeat(after.values, 4).tolist(), four),
    )
    assert repeated == pytest.approx((mean, error))
    assert difference(Losses([2.0], [0]), Losses([1.0], [0])) == (1.0, float("inf"))


def test_items_without_a_context_are_independent() -> None:
    def sizes(_: Any, items: Sequence[Any]) -> Tensor:
        return torch.tensor([float(len(item)) for item in items])

    with opened(tiny(), "gain") as (sharpened, parameters):
        found = losses_of(
            sharpened, parameters, parameters.neutral(), Term(sizes, ["a", "bb", "c"], 1)
        )
    assert found == Losses([1.0, 2.0, 1.0], [0, 1, 2])
