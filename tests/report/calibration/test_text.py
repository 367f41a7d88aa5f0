from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calibrations import CALIBRATIONS, SHARES, make_calibration, make_evaluation
from sharpmax.models._evaluation.cells import cells_of
from sharpmax.models._evaluation.verdict import Verdict, judge
from sharpmax.report.calibration import text

CELLS = cells_of(["passkey", "key-value", "text"], [1024])
MINUS = "\N{MINUS SIGN}"


def _verdict(calibrations: Any = CALIBRATIONS, **shares: float) -> Verdict:
    named = {"constant+gain" if name == "both" else name: s for name, s in shares.items()}
    return judge(make_evaluation({"plain": 0.5, **named}, CELLS), calibrations)


SAID = {
    "nothing": (
        "No calibration significantly improved on the plain model, so leave the model unchanged."
        " The plain model has an accuracy of 50.0% on 800 test questions (differences: constant"
        f" none; gain {MINUS}10.0 points"
    ),
    "sharpening": (
        "Sharpening helps. Changing the temperature of 4 heads (3 sharper, 1 flatter) raises"
        " accuracy on 800 test questions from 50.0% to 80.0% (+30.0 points, 95% interval +"
    ),
    "any": ("The improvement is not specific to sharpening. Changing the temperature of 4 heads"),
    "gain": (
        "Sharpening does not explain the improvement. Scaling head outputs alone raises accuracy"
        " on 800 test questions from 50.0% to 80.0%"
    ),
    "both": (
        "Sharpening alone does not explain the improvement. Changing the temperature of 2 heads and"
        " scaling head outputs raises accuracy on 800 test questions from 50.0% to 90.0%"
    ),
}


@pytest.mark.parametrize(
    ("case", "shares"),
    [
        ("nothing", {"constant": 0.5, "gain": 0.4, "both": 0.5}),
        ("sharpening", {"constant": 0.8, "gain": 0.6, "both": 0.8}),
        ("any", {"constant": 0.8, "gain": 0.8, "both": 0.8}),
        ("gain", {"constant": 0.6, "gain": 0.8, "both": 0.8}),
        ("both", {"constant": 0.6, "gain": 0.6, "both": 0.9}),
    ],
)
def test_the_conclusion_of_each_case_comes_first(case: str, shares: dict[str, float]) -> None:
    sentence = text.verdict_sentence(_verdict(**shares))
    assert sentence.startswith(SAID[case])
    assert sentence.endswith(".")


def test_flattening() -> None:
    flat = {**CALIBRATIONS, "constant": make_calibration("constant", {(0, 0): 0.8})}
    sentence = text.verdict_sentence(_verdict(flat, constant=0.8, gain=0.5))
    assert sentence.startswith(
        "Flattening helps, not sharpening. Changing the temperature of 1 head"
    )
    assert "(0 sharper, 1 flatter)" in sentence


def test_without_a_control_and_without_a_decision() -> None:
    only = {"constant": CALIBRATIONS["constant"]}
    sentence = text.verdict_sentence(_verdict(only, constant=0.8))
    assert sentence.startswith("The effect of sharpening cannot be isolated. constant raises")
    assert "no calibration of gains alone" in sentence
    decided = _verdict(constant=0.8, gain=0.5)
    sentence = text.verdict_sentence(replace(decided, case="undecided"))
    assert "The effect of sharpening is undecided." in sentence
    assert "is not significant" in sentence
    assert "No arms were compared" in text.verdict_sentence(_verdict({}))


def _of_text() -> dict[str, Any]:
    settings = {**CALIBRATIONS["gain"].notes["settings"], "tasks": ["text"]}
    return {
        name: replace(each, objective="nats per token", notes={**each.notes, "settings": settings})
        for name, each in CALIBRATIONS.items()
    }


def test_fitted_text_is_reported_as_a_loss() -> None:
    rises = {"constant": -0.05, "gain": -0.01, "constant+gain": -0.05}
    evaluation = make_evaluation(cells=cells_of(["text"], [1024]), rises=rises)
    verdict = judge(evaluation, _of_text())
    sentence = text.verdict_sentence(verdict)
    assert sentence.startswith("Sharpening helps. Changing the temperature of 4 heads (3 sharper")
    assert "lowers the loss on 12 test windows of text from 3.0" in sentence
    assert " nats per token to 2.9" in sentence
    assert f"({MINUS}0.050 nats, 95% interval {MINUS}0.05" in sentence
    nothing = judge(make_evaluation(cells=cells_of(["text"], [1024])), _of_text())
    assert "nats per token on 12 test windows of text (differences: " in text.verdict_sentence(
        nothing
    )
    chosen = text.choice_sentence(_of_text())
    assert "it lowers text loss by 1.008 nats, and by at least 0.600" in chosen
    exact = {"gain": replace(CALIBRATIONS["gain"], objective="share of wrong answers")}
    assert "lowers the share of wrong answers by 0.504, and by" in text.choice_sentence(exact)
    assert "windows per split: fit 64" in text.facts(evaluation, _of_text())["Fit of gain"]


def test_change_in_text_loss() -> None:
    evaluation = make_evaluation(cells=CELLS, rises={"constant": 0.05})
    verdict = judge(evaluation, CALIBRATIONS)
    sentence = text.guard_sentence(evaluation, verdict, 0.02)
    assert "over all lengths is +0.050 nats per token" in sentence
    assert "at 1,024 tokens" in sentence
    assert sentence.endswith("above the tolerance of 0.02.")
    assert text.guard_sentence(evaluation, verdict, 0.1).endswith("within the tolerance of 0.1.")
    assert "tolerance" not in text.guard_sentence(evaluation, verdict, None)
    fallen = make_evaluation(cells=CELLS, rises={"constant": -0.05})
    assert f"is {MINUS}0.050 nats" in text.guard_sentence(fallen, verdict, 0.02)
    nothing = judge(make_evaluation(cells=CELLS[:2]), {})
    assert text.guard_sentence(evaluation, nothing, 0.02) == ""
    assert text.wording_sentence(evaluation, nothing) == ""
    assert text.controls_sentence(evaluation, nothing) == ""


def test_wordings_and_controls() -> None:
    evaluation = make_evaluation(cells=CELLS)
    verdict = judge(evaluation, CALIBRATIONS)
    worded = text.wording_sentence(evaluation, verdict)
    assert worded.startswith(
        "In wordings that were not used in fitting, the improvement holds: +30"
    )
    controls = text.controls_sentence(evaluation, verdict)
    assert controls.startswith("constant is better than every control that needs no fit: paper in")
    assert "uniform beta 1.1 (45.0%)" in controls
    equal = make_evaluation({**SHARES, "uniform beta 1.1": 0.9}, CELLS)
    assert "constant is not significantly better than uniform beta 1.1." in text.controls_sentence(
        equal, verdict
    )
    usual = make_evaluation(cells=[cell for cell in CELLS if cell.wording == "usual"])
    assert text.wording_sentence(usual, verdict) == ""


def test_texts_of_the_fit_and_of_the_test() -> None:
    sentence = text.fitted_sentence(CALIBRATIONS)
    assert sentence.startswith("Fitted on passkey and key-value at 512 and 1,024 tokens in book.t")
    assert sentence.endswith("tested on other book.txt.")
    settings = {**CALIBRATIONS["gain"].notes["settings"], "test_texts": {}}
    kept = {"gain": make_calibration("gain", settings=settings)}
    assert "the last quarter of each text, held out" in text.fitted_sentence(kept)
    assert text.fitted_sentence({}) == ""


def test_choice_before_the_test() -> None:
    sentence = text.choice_sentence(CALIBRATIONS)
    assert "without the test data, ranks constant+gain first" in sentence
    assert "by at least 0.600 allowing for two standard errors" in sentence
    assert text.choice_sentence({"gain": make_calibration("gain", certain=None)}) == ""


def test_facts() -> None:
    facts = text.facts(make_evaluation(), CALIBRATIONS)
    assert facts["Model"] == "Abacus <small>, float32"
    fit = facts["Fit of constant"]
    assert "60 steps of Adam" in fit
    assert "questions per split: fit 64, select 48, test 32" in fit
    assert "nats per answer go from 4.000 to 3.000" in fit
    assert facts["Test lengths"] == "1,024, 2,048 and 4,096 tokens"
    assert facts["Test texts"] == "other book.txt, 300,000 characters"
    assert facts["Versions"] == "sharpmax 0.1, torch 2.0"
    plain = {"mine": replace(CALIBRATIONS["gain"], notes={})}
    assert "Fit of mine" not in text.facts(make_evaluation(), plain)
