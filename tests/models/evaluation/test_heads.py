from __future__ import annotations

import numpy as np
import pytest

from calibrations import CALIBRATIONS, HEADS, make_calibration
from sharpmax.models import Calibration, LayerCalibration
from sharpmax.models._evaluation.heads import HeadChange, best, certain_gain, changed_heads, kind
from sharpmax.policies import Constant, Exponential, Hard


def test_heads_that_change_are_listed_with_their_numbers() -> None:
    found = changed_heads(CALIBRATIONS["constant+gain"])
    assert [(each.layer, each.head) for each in found] == [(0, 1), (1, 2), (2, 2)]
    assert found[0].parameters == {"beta": 1.4}
    assert found[0].gain == pytest.approx(1.1)
    assert found[2].policy is None
    assert found[2].parameters == {}
    assert found[2].gain == pytest.approx(0.8)


def test_sharper_and_flatter() -> None:
    betas = {(0, 0): 1.2, (0, 1): 0.9, (0, 2): 1.0000001, (1, 0): 1.0}
    found = changed_heads(make_calibration("constant", betas))
    assert [(each.sharper, each.flatter) for each in found] == [(True, False), (False, True)]
    gained = changed_heads(make_calibration("gain", gains={(0, 0): 0.5, (0, 1): 1.0000001}))
    assert gained == [HeadChange(0, 0, gain=0.5)]
    assert not gained[0].sharper


def test_the_law_of_the_entropy() -> None:
    law = Exponential(np.array([1.0, 2.0, 3.0, 4.0]), strength=np.array([0.0, 0.5, 0.0, 1.0]))
    calibration = Calibration("", "llama", HEADS, (LayerCalibration(1, law),))
    found = changed_heads(calibration)
    laws = [Exponential(2.0, strength=0.5), Exponential(4.0)]
    assert found == [HeadChange(1, 1, laws[0]), HeadChange(1, 3, laws[1])]
    assert all(each.sharper and not each.flatter for each in found)
    whole = changed_heads(Calibration("", "llama", HEADS, (LayerCalibration(1, Hard()),)))
    assert whole == [HeadChange(1, head, Hard()) for head in range(4)]


def test_kinds_by_family_and_without_one() -> None:
    kinds = {name: kind(calibration) for name, calibration in CALIBRATIONS.items()}
    assert kinds == {"constant": "temperature", "gain": "gain", "constant+gain": "both"}
    for layer, expected in (
        (LayerCalibration(0, Constant(2.0)), "temperature"),
        (LayerCalibration(0, None, (1.0, 2.0, 1.0, 1.0)), "gain"),
        (LayerCalibration(0, Constant(2.0), (1.0, 2.0, 1.0, 1.0)), "both"),
    ):
        assert kind(Calibration("", "llama", HEADS, (layer,))) == expected


def test_what_is_certain_of_the_gain() -> None:
    assert certain_gain(CALIBRATIONS["gain"]) == 0.3
    assert certain_gain(make_calibration("constant", certain=None)) is None
    assert certain_gain(Calibration("", "llama", HEADS)) is None


def test_the_best_is_certain_by_the_second_part() -> None:
    assert best(CALIBRATIONS) == "constant+gain"
    empty = make_calibration("constant", certain=None)
    assert best({"constant": empty, "gain": CALIBRATIONS["gain"]}) == "gain"
    assert best({"constant": empty}) is None
    assert best({}) is None
