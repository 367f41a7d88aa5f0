from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.common.labels import spread_apart


@given(st.lists(st.floats(-10.0, 10.0), max_size=12), st.floats(0.01, 3.0))
def test_labels_keep_their_distance_and_their_order(
    positions: list[float], distance: float
) -> None:
    moved = np.array(spread_apart(positions, distance))
    order = np.argsort(positions, kind="stable")
    assert (np.diff(moved[order]) >= distance - 1e-9).all()
    assert moved.sum() == pytest.approx(sum(positions), abs=1e-6)


def test_labels_that_do_not_collide_stay() -> None:
    assert spread_apart([3.0, 1.0, 2.0], 0.5) == [3.0, 1.0, 2.0]
