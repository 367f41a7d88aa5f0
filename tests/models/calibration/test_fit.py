from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from calibrated_model import distance, opened, some_windows, tiny, whole
from sharpmax.models._calibration.fit import (
    LEAST_SHARE,
    EarlyStopping,
    Term,
    _shuffled,
    fit,
    gradients,
)
from sharpmax.models._calibration.parameters import FAMILIES
from sharpmax.models._calibration.select import losses_of
from sharpmax.models._way import evaluation_mode

OPTIONS: dict[str, Any] = {"steps": 30, "learning_rate": 0.1, "shrink": 0.0, "seed": 0}


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_finite_differences(name: Any) -> None:
    term = Term(distance, some_windows(3), batch=2, weight=7.0)
    torch.manual_seed(0)
    with opened(tiny(1, 0, 0.5).double(), name) as (sharpened, parameters):
        whole().double()
        try:
            numbers = parameters.project(
                0.2 + 0.3 * torch.rand(parameters.neutral().shape)
            ).double()
            loss, found = gradients(sharpened, parameters, numbers, term)
            assert loss == pytest.approx(losses_of(sharpened, parameters, numbers, term).mean)
            step = 1e-4
            for place in np.ndindex(*numbers.shape):
                ends = []
                for sign in (1, -1):
                    moved = numbers.clone()
                    moved[place] += sign * step
                    ends.append(losses_of(sharpened, parameters, moved, term).mean)
                slope = (ends[0] - ends[1]) / (2 * step)
                assert float(found[place]) == pytest.approx(slope, rel=1e-2, abs=1e-5)
        finally:
            whole().float()


def test_a_fit_finds_what_was_spoilt() -> None:
    losses: list[float] = []
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        terms = [Term(distance, some_windows(), 4)]
        found = fit(
            sharpened, parameters, terms, **OPTIONS, on_step=lambda *step: losses.append(step[2][0])
        )
    betas = found.exp()[0]
    assert float(betas[2]) == pytest.approx(2.0, rel=0.15)
    assert len(losses) == 30
    assert losses[-1] < 0.3 * losses[0]
    assert not found.requires_grad


def test_shrinking_keeps_numbers_at_zero() -> None:
    options = {**OPTIONS, "shrink": 100.0}
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        found = fit(sharpened, parameters, [Term(distance, some_windows(), 4)], **options)
    assert not found.any()


def test_shrinking_a_little_pulls_numbers_towards_zero() -> None:
    def size(shrink: float) -> float:
        with opened(tiny(1, 0, 0.5), "constant", flatten=True) as (sharpened, parameters):
            term = Term(distance, some_windows(), 4)
            found = fit(sharpened, parameters, [term], **{**OPTIONS, "shrink": shrink})
        return float(found.abs().sum())

    assert size(0.0) > size(0.01) > size(0.1)


def test_the_same_seed_fits_the_same_and_steps_are_told() -> None:
    told: list[tuple[int, int, list[float]]] = []
    found = []
    for _ in range(2):
        with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
            terms = [Term(distance, some_windows(), 2), Term(distance, some_windows(), 1, 0.5)]
            found.append(
                fit(
                    sharpened, parameters, terms, **{**OPTIONS, "steps": 3},
                    on_step=lambda *step: told.append(step),
                )
            )  # fmt: skip
    assert torch.equal(found[0], found[1])
    assert [step[:2] for step in told] == [(1, 3), (2, 3), (3, 3)] * 2
    assert [step[2] for step in told[:3]] == [step[2] for step in told[3:]]
    assert len(told[0][2]) == 2


def test_weights_scale_the_terms() -> None:
    def numbers(weight: float) -> torch.Tensor:
        term = Term(distance, some_windows(), 8, weight)
        with opened(tiny(1, 0, 0.5), "constant", flatten=True) as (sharpened, parameters):
            return fit(sharpened, parameters, [term], **{**OPTIONS, "steps": 1})

    # Adam takes steps of the same size whatever the scale, but for the sign.
    torch.testing.assert_close(numbers(1.0), numbers(3.0), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(numbers(1.0), -numbers(-1.0), atol=1e-4, rtol=1e-3)


def test_items_that_belong_together_are_taken_together() -> None:
    windows = some_windows(6)
    pairs = Term(distance, windows, 1, key=lambda window: window.context % 2)
    assert [[w.context for w in group] for group in pairs.groups()] == [[0, 2, 4], [1, 3, 5]]
    assert len(Term(distance, windows, 1).groups()) == 6


def test_every_group_comes_once_before_any_comes_again() -> None:
    groups = [[name] for name in "abcde"]
    order = [group[0] for group in islice(_shuffled(groups, np.random.default_rng(0)), 15)]
    for turn in range(3):
        assert Counter(order[5 * turn : 5 * turn + 5]) == Counter("abcde")
    assert order[:5] != order[5:10]


def test_every_context_counts_once() -> None:
    windows = [
        replace(window, context=context)
        for window, context in zip(some_windows(4), (0, 0, 0, 1), strict=True)
    ]

    def own(_: Any, items: Sequence[Any]) -> torch.Tensor:
        return torch.tensor([float(item.context) for item in items], requires_grad=True)

    term = Term(own, windows, 2, key=lambda window: window.context)
    with opened(tiny(), "gain") as (sharpened, parameters):
        told: list[Any] = []
        fit(
            sharpened, parameters, [term], **{**OPTIONS, "steps": 1},
            on_step=lambda *step: told.append(step),
        )  # fmt: skip
        assert told == [(1, 1, [0.5])]
        assert losses_of(sharpened, parameters, parameters.neutral(), term).mean == 0.5


def _fail_while_frozen(model: torch.nn.Module) -> None:
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not model.training
    raise KeyError


def test_a_frozen_model_is_as_it_was_afterwards() -> None:
    model = tiny().train()
    model.model.embed_tokens.weight.requires_grad_(False)
    model.model.norm.eval()
    wanted = [weight.requires_grad for weight in model.parameters()]
    training = [module.training for module in model.modules()]
    with pytest.raises(KeyError), evaluation_mode(model, frozen=True):
        _fail_while_frozen(model)
    assert [weight.requires_grad for weight in model.parameters()] == wanted
    assert [module.training for module in model.modules()] == training


def test_a_fit_ends_early_when_its_checks_no_longer_fall() -> None:
    def fitted(every: int, **options: Any) -> tuple[torch.Tensor, int, EarlyStopping]:
        steps = [0]
        with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
            watched = Term(distance, some_windows(6, seed=7), 1)
            stopping = EarlyStopping(
                every, lambda at: losses_of(sharpened, parameters, at, watched).mean
            )
            found = fit(
                sharpened, parameters, [Term(distance, some_windows(), 4)], **OPTIONS | options,
                on_step=lambda *_: steps.__setitem__(0, steps[0] + 1), stopping=stopping,
            )  # fmt: skip
        return found, steps[0], stopping

    whole, all_steps, unused = fitted(1000)
    assert all_steps == 30
    assert [step for step, _ in unused.checks] == [0]

    early, steps, stopping = fitted(3)
    assert steps < 30
    assert steps == stopping.checks[-1][0]
    assert [step for step, _ in stopping.checks] == [*range(0, steps + 1, 3)]
    losses = [loss for _, loss in stopping.checks]
    falls = [before - after for before, after in pairwise(losses)]
    # Every stretch but the last brought a twentieth of the decrease or more.
    shares = [fall / (losses[0] - after) for fall, after in zip(falls[1:], losses[2:], strict=True)]
    assert all(share >= LEAST_SHARE for share in shares[:-1])
    assert shares[-1] < LEAST_SHARE or falls[-1] <= 0
    assert min(losses) < 0.1 * losses[0]
    assert float(early[0, 2]) == pytest.approx(float(whole[0, 2]), rel=0.15)


def test_of_a_fit_that_gets_worse_the_best_check_is_kept() -> None:
    worse = iter([5.0, 3.0, 2.0, 4.0])
    kept = []
    stopping = EarlyStopping(2, lambda at: kept.append(at) or next(worse))
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        found = fit(
            sharpened, parameters, [Term(distance, some_windows(), 4)], **OPTIONS, stopping=stopping
        )
    assert stopping.checks == [(0, 5.0), (2, 3.0), (4, 2.0), (6, 4.0)]
    assert torch.equal(found, kept[2])
    assert not torch.equal(found, kept[3])
    # A loss that only rises leaves the model as it was.
    rising = EarlyStopping(1, lambda at: 1.0 + float(at.abs().sum()))
    with opened(tiny(1, 0, 0.5), "constant") as (sharpened, parameters):
        found = fit(
            sharpened, parameters, [Term(distance, some_windows(), 4)], **OPTIONS, stopping=rising
        )
    assert not found.any()
    assert len(rising.checks) == 2
