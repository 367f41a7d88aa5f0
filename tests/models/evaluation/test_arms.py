from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from calibrations import CALIBRATIONS, HEADS, make_calibration
from sharpmax._settings import is_control
from sharpmax.models import Calibration, LayerCalibration
from sharpmax.models._evaluation.arms import arms_of, named, shuffled
from sharpmax.models._evaluation.heads import changed_heads
from sharpmax.policies import Constant, Exponential, Hard, Paper


def _changes(calibration: Calibration) -> Counter[tuple[str, float]]:
    """What heads get; the policy and the gain of a head stay together."""
    return Counter((repr(each.policy), each.gain) for each in changed_heads(calibration))


@pytest.mark.parametrize("name", list(CALIBRATIONS))
def test_shuffled_heads_have_the_same_changes(name: str) -> None:
    calibration = CALIBRATIONS[name]
    places = {(each.layer, each.head) for each in changed_heads(calibration)}
    moved = 0
    for seed in range(5):
        dealt = shuffled(calibration, seed)
        assert _changes(dealt) == _changes(calibration)
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
    assert _changes(shuffled(calibration)) == _changes(calibration)


def test_an_empty_calibration_stays_empty() -> None:
    assert shuffled(make_calibration("constant", certain=None)).layers == ()


def test_a_policy_that_cannot_be_switched_off_is_refused_unless_all_heads_have_it() -> None:
    one = Calibration("", "llama", HEADS, (LayerCalibration(0, Hard()),))
    with pytest.raises(TypeError, match="expected one kind for all heads"):
        shuffled(one)
    every = Calibration("", "llama", HEADS, tuple(LayerCalibration(i, Hard()) for i in range(3)))
    assert shuffled(every).layers == every.layers


def test_arms() -> None:
    assert list(arms_of(CALIBRATIONS)) == [
        "plain", "constant", "gain", "constant+gain", "paper in all heads", "uniform beta 1.1",
        "shuffled constant+gain",
    ]  # fmt: skip
    assert list(arms_of(CALIBRATIONS, controls=False)) == ["plain", *CALIBRATIONS]
    assert list(arms_of({})) == ["plain", "paper in all heads", "uniform beta 1.1"]
    assert list(arms_of({"sharp": Constant(2.0)}, controls=False)) == ["plain", "sharp"]
    controls = arms_of({})
    assert controls["plain"] is None
    assert isinstance(controls["paper in all heads"], Paper)
    assert controls["uniform beta 1.1"] == Constant(1.1)
    assert [name for name in arms_of(CALIBRATIONS) if is_control(name)] == [
        "plain", "paper in all heads", "uniform beta 1.1", "shuffled constant+gain",
    ]  # fmt: skip


def test_names_of_changes() -> None:
    assert named(None) == {}
    assert named(Hard()) == {"Hard": Hard()}
    assert named(CALIBRATIONS["gain"]) == {"calibrated": CALIBRATIONS["gain"]}
    assert named(CALIBRATIONS) == CALIBRATIONS
    with pytest.raises(ValueError, match=r"changes: expected names other than .* got 'plain'"):
        named({"plain": Hard()})
