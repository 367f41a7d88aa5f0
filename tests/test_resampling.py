from __future__ import annotations

import numpy as np
import pytest

from sharpmax._resampling import clustered_interval


def test_alone_in_its_cluster_each_value_is_independent() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = clustered_interval(values.tolist(), range(400))
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_copies_in_a_cluster_count_once() -> None:
    values = np.random.default_rng(0).normal(size=50)
    alone = clustered_interval(values.tolist(), range(50))
    copied = clustered_interval(np.repeat(values, 7).tolist(), np.repeat(range(50), 7).tolist())
    assert copied == pytest.approx(alone)
    naive = clustered_interval(np.repeat(values, 7).tolist(), range(350))
    assert naive[1] - naive[0] < 0.5 * (alone[1] - alone[0])


def test_large_clusters_weigh_more() -> None:
    low, high = clustered_interval([1.0] * 9 + [0.0], ["a"] * 9 + ["b"])
    assert (low, high) == (0.0, 1.0)
    mean = clustered_interval([1.0] * 9 + [0.0], ["a"] * 9 + ["b"], level=0.01)
    assert mean == pytest.approx((0.9, 0.9))


def test_it_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for trial in range(200):
        # Values of a cluster have something in common.
        common = np.repeat(rng.normal(size=40), 5)
        values = common + rng.normal(size=200)
        low, high = clustered_interval(
            values.tolist(), np.repeat(range(40), 5).tolist(), resamples=400, seed=trial
        )
        inside += low < 0.0 < high
    assert 0.89 < inside / 200 < 0.98


def test_the_same_seed_gives_the_same_and_names_may_be_anything() -> None:
    values = [0.1, 0.5, 0.4, 0.9]
    one = clustered_interval(values, [("text", 1), ("text", 1), "b", 3])
    assert one == clustered_interval(values, [0, 0, 1, 2])
    assert one != clustered_interval(values, [0, 0, 1, 2], seed=1, resamples=11)
    assert clustered_interval([2.0, 2.0], [0, 0]) == (2.0, 2.0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5])
def test_what_cannot_be_is_named(level: float) -> None:
    with pytest.raises(ValueError, match="level: expected between 0 and 1"):
        clustered_interval([1.0], [0], level=level)
    with pytest.raises(ValueError, match="values: expected at least one value, got none"):
        clustered_interval([], [])
