from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from calibrations import CALIBRATIONS, HEADS, make_calibration
from sharpmax.models import Calibration, LayerCalibration
from sharpmax.models._evaluation.arms import control_arms, shuffled, uniform
from sharpmax.models._evaluation.changes import changed_heads
from sharpmax.policies import Constant, Exponential, Hard, Paper


def _numbers(calibration: Calibration) -> Counter[tuple[float, ...]]:
    """What heads get, rounded; a head keeps its numbers together."""
    return Counter(
        tuple(round(x or 0.0, 9) for x in (each.beta, each.strength, each.reference, each.gain))
        for each in changed_heads(calibration)
    )


@pytest.mark.parametrize("name", list(CALIBRATIONS))
def test_shuffled_heads_have_the_same_numbers(name: str) -> None:
    calibration = CALIBRATIONS[name]
    places = {(each.layer, each.head) for each in changed_heads(calibration)}
    moved = 0
    for seed in range(5):
        dealt = shuffled(calibration, seed)
        assert _numbers(dealt) == _numbers(calibration)
        moved += {(each.layer, each.head) for each in changed_heads(dealt)} != places
        assert dealt.head_counts == HEADS
        assert dealt.after is None
    assert moved >= 4
    assert shuffled(calibration, 3).to_dict() == shuffled(calibration, 3).to_dict()


def test_shuffled_laws_of_the_entropy_and_numbers_for_a_whole_layer() -> None:
    law = Exponential(np.array([1.0, 2.0, 3.0, 4.0]), strength=np.array([0.0, 0.5, 0.0, 1.0]))
    layers = (LayerCalibration(0, law, (1.0, 1.5, 1.0, 1.0)), LayerCalibration(2, Exponential(2.5)))
    calibration = Calibration("", "llama", HEADS, layers)
    assert len(changed_heads(calibration)) == 2 + 4
    assert _numbers(shuffled(calibration)) == _numbers(calibration)


def test_an_empty_calibration_stays_empty() -> None:
    assert shuffled(make_calibration("constant", certain=None)).layers == ()


def test_other_policies_are_refused() -> None:
    calibration = Calibration("", "llama", HEADS, (LayerCalibration(0, Hard()),))
    with pytest.raises(TypeError, match="calibration: expected Constant or Exponential, got Hard"):
        shuffled(calibration)


def test_controls() -> None:
    arms = control_arms(CALIBRATIONS["constant"], "constant")
    names = ["plain", "paper in all heads", "uniform beta 1.1", "shuffled constant"]
    assert list(arms) == names
    assert arms["plain"] is None
    assert isinstance(arms["paper in all heads"], Paper)
    assert list(control_arms(None)) == names[:3]
    policy = uniform(2.0)
    assert isinstance(policy, Constant)
    assert policy.beta == 2.0
