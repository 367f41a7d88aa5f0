from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from calibrations import CALIBRATIONS, SHARES, make_calibration, make_evaluation
from sharpmax.models import Calibration, Evaluation
from sharpmax.models._evaluation.cells import Cell, cells_of
from sharpmax.models._evaluation.verdict import (
    CASES,
    Case,
    compare,
    fitted_tasks,
    judge,
    surprise,
)

CELLS = cells_of(["passkey", "key-value"], [1024, 2048])


def _evaluation(**shares: float) -> Evaluation:
    """Arms by name; "both" stands for constant and gain."""
    named = {"constant+gain" if name == "both" else name: s for name, s in shares.items()}
    return make_evaluation({"plain": 0.5, **named}, CELLS)


FLAT = {
    **CALIBRATIONS,
    "constant": make_calibration("constant", {(0, 0): 0.8, (0, 1): 0.9, (1, 1): 1.5}),
}
WITHOUT_GAIN = {"constant": CALIBRATIONS["constant"]}
WITHOUT_TEMPERATURE = {name: CALIBRATIONS[name] for name in ("gain", "constant+gain")}


@pytest.mark.parametrize(
    ("shares", "calibrations", "case", "subject"),
    [
        ({"constant": 0.5, "gain": 0.5, "both": 0.5}, CALIBRATIONS, "nothing", None),
        ({"constant": 0.3, "gain": 0.4, "both": 0.5}, CALIBRATIONS, "nothing", None),
        ({"constant": 0.8, "gain": 0.5, "both": 0.8}, CALIBRATIONS, "sharpening", "constant"),
        ({"constant": 0.8, "gain": 0.6, "both": 0.7}, CALIBRATIONS, "sharpening", "constant"),
        ({"constant": 0.8, "gain": 0.6, "both": 0.7}, FLAT, "flattening", "constant"),
        ({"constant": 0.8, "gain": 0.8, "both": 0.8}, CALIBRATIONS, "any", "constant"),
        ({"constant": 0.8, "gain": 0.8, "both": 0.8}, FLAT, "any", "constant"),
        ({"constant": 0.5, "gain": 0.8, "both": 0.8}, CALIBRATIONS, "gain", "gain"),
        ({"constant": 0.6, "gain": 0.8, "both": 0.7}, CALIBRATIONS, "gain", "gain"),
        ({"constant": 0.6, "gain": 0.6, "both": 0.9}, CALIBRATIONS, "both", "constant+gain"),
        ({"constant": 0.8, "gain": 0.6, "both": 0.9}, CALIBRATIONS, "both", "constant+gain"),
        ({"constant": 0.8}, WITHOUT_GAIN, "no control", "constant"),
        ({"constant": 0.5}, WITHOUT_GAIN, "nothing", None),
        ({"gain": 0.6, "both": 0.8}, WITHOUT_TEMPERATURE, "no control", "constant+gain"),
        ({}, {}, "nothing", None),
    ],
)
def test_every_case(
    shares: dict[str, float],
    calibrations: Mapping[str, Calibration],
    case: Case,
    subject: str | None,
) -> None:
    verdict = judge(_evaluation(**shares), calibrations)
    assert (verdict.case, verdict.subject) == (case, subject)
    about = "" if subject is None else f" ({subject})"
    assert verdict.summary().startswith(f"verdict: {case}{about}: {CASES[case]}")


def test_what_may_be_chance_is_not_decided() -> None:
    evaluation = _evaluation(constant=0.56, gain=0.5, both=0.5)
    rng = np.random.default_rng(3)
    for place, result in enumerate(evaluation.results):
        if result.arm == "gain":
            # Right nearly as often, but on questions that have nothing to do with the others'.
            order = rng.permutation(len(result.values)) / len(result.values)
            values = tuple((order < 0.51).astype(float).tolist())
            evaluation.results[place] = replace(result, values=values)
    verdict = judge(evaluation, CALIBRATIONS)
    assert verdict.against_plain["constant"].better
    assert not verdict.against_plain["gain"].better
    assert verdict.against_gain is not None
    assert not verdict.against_gain.better
    assert (verdict.case, verdict.subject) == ("undecided", "constant")


def test_only_fitted_tasks_count() -> None:
    evaluation = make_evaluation()
    assert judge(evaluation, CALIBRATIONS).tasks == ("passkey", "key-value")
    of_maxima = judge(evaluation, CALIBRATIONS, ["maximum"])
    assert of_maxima.against_plain["constant"].questions == 3 * 200
    unnamed = {name: replace(each, notes={}) for name, each in CALIBRATIONS.items()}
    assert fitted_tasks(evaluation, unnamed) == ("passkey", "key-value", "maximum")


def test_comparisons_are_paired_and_by_context() -> None:
    evaluation = make_evaluation()
    found = compare(evaluation, "constant", "plain", ["passkey", "key-value"])
    assert found is not None
    # Three lengths, two tasks, two wordings; and all of them about the same stretches.
    assert (found.questions, found.contexts) == (12 * 200, 25)
    assert found.share - found.other_share == pytest.approx(found.difference)
    assert found.difference == pytest.approx(0.3, abs=0.01)
    low, high = found.interval
    assert low < found.difference < high
    # Alone, each share is far less certain than the difference.
    result = evaluation.find("plain", Cell("passkey", 1024))
    assert result is not None
    assert high - low < 0.5 * (result.interval[1] - result.interval[0])
    opposite = compare(evaluation, "plain", "constant", ["passkey", "key-value"])
    assert opposite is not None
    assert opposite.difference == -found.difference
    usual = compare(evaluation, "constant", "plain", ["passkey"], wording="usual")
    assert usual is not None
    assert usual.questions == 3 * 200
    maxima = compare(evaluation, "constant", "plain", ["maximum", "passkey"])
    assert maxima is not None
    assert maxima.contexts == 25 + 200


def test_surprise_is_of_pairs_too() -> None:
    evaluation = make_evaluation({"plain": 0.5, "gain": 0.6}, CELLS)
    found = surprise(evaluation, "gain", "plain", ["passkey", "key-value"])
    assert found is not None
    change, (low, high) = found
    # A tenth of the questions takes 1.9 nats less.
    assert change == pytest.approx(-0.19, abs=0.01)
    assert low < change < high < 0
    assert surprise(evaluation, "gain", "none", ["passkey"]) is None


def test_there_may_be_nothing_to_compare() -> None:
    evaluation = make_evaluation(cells=[Cell("text", 64)])
    assert compare(evaluation, "constant", "plain", ["text", "passkey"]) is None
    assert compare(evaluation, None, "plain", ["passkey"]) is None
    assert judge(evaluation, CALIBRATIONS).case == "nothing"


def test_text_that_was_fitted_is_judged_by_its_loss() -> None:
    settings = {**CALIBRATIONS["gain"].notes["settings"], "tasks": ["text"]}
    calibrations = {
        name: replace(each, notes={**each.notes, "settings": settings})
        for name, each in CALIBRATIONS.items()
    }
    rises = {"constant": -0.05, "gain": -0.01, "constant+gain": -0.05}
    evaluation = make_evaluation(cells=cells_of(["passkey", "text"], [1024, 2048]), rises=rises)
    assert fitted_tasks(evaluation, calibrations) == ("text",)
    verdict = judge(evaluation, calibrations)
    assert (verdict.case, verdict.subject, verdict.tasks) == ("sharpening", "constant", ("text",))
    found = verdict.against_plain["constant"]
    assert found.of_text
    assert verdict.of_text
    change = f"{-found.difference:+.3f} nats per token, 95% interval {-found.interval[1]:+.3f} to"
    assert f"constant against plain: {change}" in verdict.summary()
    assert (found.questions, found.contexts) == (24, 12)
    assert found.difference == pytest.approx(0.05, abs=0.002)
    assert 0 < found.interval[0] < found.difference < found.interval[1]
    assert found.share < found.other_share
    assert surprise(evaluation, "constant", "plain", ["text"]) is None
    worse = make_evaluation(cells=[Cell("text", 64)], rises=dict.fromkeys(rises, 0.1))
    assert judge(worse, calibrations).case == "nothing"


def test_the_best_of_several_of_a_kind_is_that_of_the_second_part() -> None:
    calibrations = {
        "weak": make_calibration("constant", {(0, 0): 1.1}, certain=0.1),
        "strong": make_calibration("entropy", {(0, 0): 2.0}, certain=0.9),
        "gain": CALIBRATIONS["gain"],
        "empty": make_calibration("constant", certain=None),
    }
    shares = {"plain": 0.5, "weak": 0.9, "strong": 0.8, "gain": 0.5, "empty": 0.5}
    verdict = judge(make_evaluation(shares, CELLS), calibrations)
    assert verdict.temperature == "strong"
    assert verdict.subject == "strong"
    assert (verdict.sharper, verdict.flatter) == (1, 0)


def test_heads_are_counted() -> None:
    verdict = judge(make_evaluation(SHARES), CALIBRATIONS)
    assert verdict.case == "sharpening"
    assert (verdict.sharper, verdict.flatter) == (3, 1)
