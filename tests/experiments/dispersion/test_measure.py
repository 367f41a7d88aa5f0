from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.dispersion.measure import SIZES, Dispersion, measure_dispersion
from sharpmax import policies


@pytest.fixture(scope="module")
def measured() -> Dispersion:
    return measure_dispersion(sizes=SIZES[:11], rows=3)


def _largest(measured: Dispersion, name: str) -> np.ndarray:
    return np.array(next(curve.largest for curve in measured.curves if curve.name == name))


def test_sizes_go_from_16_to_a_million() -> None:
    assert (SIZES[0], SIZES[-1]) == (16, 1_048_576)


def test_plain_softmax_stays_between_the_bounds_and_falls_like_1_over_n(
    measured: Dispersion,
) -> None:
    plain = _largest(measured, "plain softmax")
    assert (plain >= measured.bounds.lower).all()
    assert (plain <= measured.bounds.upper).all()
    tail = slice(-4, None)
    slopes = np.diff(np.log(plain[tail])) / np.diff(np.log(measured.sizes[tail]))
    np.testing.assert_allclose(slopes, -1.0, atol=0.1)


def test_paper_gives_up_where_its_polynomial_ends(measured: Dispersion) -> None:
    plain, paper = _largest(measured, "plain softmax"), _largest(measured, "Paper")
    assert paper[0] > 1.3 * plain[0]
    assert paper[-1] == plain[-1]


def test_policies_that_follow_the_entropy_stay_level(measured: Dispersion) -> None:
    for name in ("Exponential", "EntropyTarget"):
        largest = _largest(measured, name)
        assert largest.min() > 0.5 * largest[0], name
    assert (_largest(measured, "Hard") == 1.0).all()


def test_no_policy_flattens(measured: Dispersion) -> None:
    plain = _largest(measured, "plain softmax")
    for curve in measured.curves:
        assert (np.array(curve.largest) >= plain * (1 - 1e-12)).all(), curve.name
        assert min(curve.inverse_temperature) >= 1.0


def test_the_seed_decides_and_other_sizes_do_not_matter() -> None:
    first = measure_dispersion(sizes=(16, 256), rows=2, seed=5)
    again = measure_dispersion(sizes=(16, 256), rows=2, seed=5)
    longer = measure_dispersion(sizes=(16, 256, 512), rows=2, seed=5)
    assert first.to_dict() == again.to_dict()
    assert first.reference == longer.reference
    assert measure_dispersion(sizes=(16,), rows=2, seed=6).reference != first.reference


def test_plain_data_survives_json(measured: Dispersion) -> None:
    data = measured.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    read = [policies.Policy.from_dict(curve["policy"]) for curve in data["curves"]]
    assert read == [curve.policy for curve in measured.curves]


def test_other_policies_can_be_compared() -> None:
    compared = {"mine": policies.Constant(10.0)}
    measured = measure_dispersion(sizes=(16,), rows=1, compared=compared)
    assert measured.curves[0].inverse_temperature == (10.0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spread": 0.0}, "^spread: expected a finite number above 0, got 0.0"),
        ({"spread": float("nan")}, "^spread: .*got nan"),
        ({"rows": 0}, "^rows: .*at least 1, got 0"),
        ({"train_length": 1}, "^train_length: .*at least 2, got 1"),
        ({"seed": -1}, "^seed: .*at least 0, got -1"),
        ({"sizes": ()}, "^sizes: expected at least one"),
        ({"sizes": (0, 16)}, "^sizes: .*at least 1, got 0"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_dispersion(**arguments)
