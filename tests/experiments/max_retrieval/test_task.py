from __future__ import annotations

import numpy as np
import pytest

from experiments.max_retrieval.task import NearTies, Sets, sample


def _sample(seed: int = 0, sets: int = 4000, size: int = 16, ties: NearTies | None = None) -> Sets:
    return sample(np.random.default_rng(seed), sets, size, ties)


def test_the_target_is_the_class_of_the_highest_priority() -> None:
    sets = _sample(sets=200)
    for priorities, classes, target in zip(
        sets.priorities, sets.classes, sets.targets, strict=True
    ):
        best = max(zip(priorities, classes, strict=True))
        assert target == best[1]


def test_priorities_and_classes_are_uniform_and_independent() -> None:
    sets = _sample()
    assert sets.priorities.min() >= 0
    assert sets.priorities.max() < 1
    assert abs(sets.priorities.mean() - 1 / 2) < 0.01
    assert abs(sets.priorities.var() - 1 / 12) < 0.01
    shares = np.bincount(sets.classes.ravel(), minlength=10) / sets.classes.size
    assert np.abs(shares - 0.1).max() < 0.01
    assert abs(np.corrcoef(sets.priorities.ravel(), sets.classes.ravel())[0, 1]) < 0.02
    # The query says nothing.
    assert abs(np.corrcoef(sets.queries, sets.targets)[0, 1]) < 0.05


def test_the_same_seed_gives_the_same_sets_and_another_gives_others() -> None:
    ties = NearTies()
    one, again, other = _sample(3, ties=ties), _sample(3, ties=ties), _sample(4, ties=ties)
    assert np.array_equal(one.priorities, again.priorities)
    assert np.array_equal(one.classes, again.classes)
    assert not np.array_equal(one.priorities, other.priorities)


def test_near_ties_lie_in_windows_of_log_uniform_width_at_the_top() -> None:
    sets = _sample(ties=NearTies(share=1.0, narrowest=1e-4, top=1.0), size=64)
    widths = 1 - sets.priorities.min(1)
    assert sets.priorities.max() < 1
    assert widths.min() > 0.8e-4
    quantiles = np.quantile(np.log10(widths), [0.25, 0.5, 0.75])
    assert np.abs(quantiles - [-3, -2, -1]).max() < 0.15


def test_the_share_and_the_place_of_near_ties() -> None:
    sets = _sample(ties=NearTies(share=0.5, narrowest=1e-6, top=0.0), size=64)
    narrow = np.ptp(sets.priorities, axis=1) < 1e-1
    # Half are near, and five of six decades are below a tenth.
    assert abs(narrow.mean() - 0.5 * 5 / 6) < 0.03
    assert abs(sets.priorities[narrow].mean() - 0.5) < 0.03


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"share": 1.5}, "share: expected from 0 to 1"),
        ({"top": -0.1}, "top: expected"),
        ({"narrowest": 0.0}, "narrowest: expected above 0"),
    ],
)
def test_bad_ties_are_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NearTies(**arguments)


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(ValueError, match="size: expected at least 1"):
        _sample(size=0)
