from __future__ import annotations

import numpy as np
import pytest

from experiments.common.significance import bootstrap_interval, paired_p_value


def test_the_p_value_is_that_of_the_paired_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    ours, theirs = rng.random(10), rng.random(10)
    assert paired_p_value(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_what_leaves_nothing_to_compare() -> None:
    assert paired_p_value([0.5, 0.6], [0.5, 0.6]) == 1.0
    assert paired_p_value([0.5], [0.4]) is None
    assert paired_p_value([0.5, 0.75], [0.25, 0.5]) is None
    with pytest.raises(ValueError, match="theirs: expected 2 figures, got 1"):
        paired_p_value([0.1, 0.2], [0.1])


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.normal(0.5, 0.1, 30), resamples=500)
        held += low <= 0.5 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_the_interval_repeats_and_shrinks_to_a_point_without_deviation() -> None:
    values = [0.7, 0.8, 0.9]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval([0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="values: expected at least one"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval(values, level=95)
