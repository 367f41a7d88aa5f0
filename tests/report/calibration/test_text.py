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
        "Nothing held: with no calibration does the model answer more of 800 test questions right"
        " for certain than the 50.0% it does as it is (differences: constant none; gain"
        f" {MINUS}10.0 points"
    ),
    "sharpening": (
        "Sharpening did it: with other temperatures in 4 heads (3 sharper, 1 less sharp) the model"
        " answers 80.0% of 800 test questions right instead of 50.0% (+30.0 points, 95% interval +"
    ),
    "any": (
        "It was not the sharpening, since any calibration does as well: with other temperatures in"
        " 4 heads"
    ),
    "gain": (
        "It was not the sharpening: with a gain on each head's output, which touches no"
        " temperature, the model answers 80.0%"
    ),
    "both": (
        "Sharpening alone did not do it, both are needed: with other temperatures in 2 heads and"
        " gains the model answers 90.0%"
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
def test_one_sentence_for_each_case(case: str, shares: dict[str, float]) -> None:
    sentence = text.verdict_sentence(_verdict(**shares))
    assert sentence.startswith(SAID[case])
    assert sentence.endswith(".")
    assert ". " not in sentence, "one sentence"


def test_flattening() -> None:
    flat = {**CALIBRATIONS, "constant": make_calibration("constant", {(0, 0): 0.8})}
    sentence = text.verdict_sentence(_verdict(flat, constant=0.8, gain=0.5))
    assert sentence.startswith("Flattening did it, not sharpening: with other temperatures in one")
    assert "(0 sharper, 1 less sharp)" in sentence


def test_without_a_control_and_without_a_decision() -> None:
    only = {"constant": CALIBRATIONS["constant"]}
    sentence = text.verdict_sentence(_verdict(only, constant=0.8))
    assert sentence.startswith("Whether sharpening did it cannot be told: with constant the model")
    assert "no calibration of gains alone" in sentence
    decided = _verdict(constant=0.8, gain=0.5)
    sentence = text.verdict_sentence(replace(decided, case="undecided"))
    assert "It is not decided whether sharpening did it" in sentence
    assert "more questions would tell" in sentence
    assert "Nothing was compared" in text.verdict_sentence(_verdict({}))


def _of_text() -> dict[str, Any]:
    settings = {**CALIBRATIONS["gain"].notes["settings"], "tasks": ["text"]}
    return {
        name: replace(each, objective="nats per token", notes={**each.notes, "settings": settings})
        for name, each in CALIBRATIONS.items()
    }


def test_text_that_was_fitted_has_a_loss() -> None:
    rises = {"constant": -0.05, "gain": -0.01, "constant+gain": -0.05}
    evaluation = make_evaluation(cells=cells_of(["text"], [1024]), rises=rises)
    verdict = judge(evaluation, _of_text())
    sentence = text.verdict_sentence(verdict)
    assert sentence.startswith("Sharpening did it: with other temperatures in 4 heads (3 sharper")
    assert "the model loses 2." in sentence
    assert " nats a token on 12 test windows of text instead of 3.0" in sentence
    assert f"({MINUS}0.050 nats, 95% interval {MINUS}0.05" in sentence
    nothing = judge(make_evaluation(cells=cells_of(["text"], [1024])), _of_text())
    assert "lose less on 12 test windows of text for certain than" in text.verdict_sentence(nothing)
    chosen = text.choice_sentence(_of_text())
    assert "there the loss on text falls by 1.008 nats, by at least 0.600" in chosen
    exact = {"gain": replace(CALIBRATIONS["gain"], objective="share of wrong answers")}
    assert "the share of wrong answers falls by 0.504, by at least" in text.choice_sentence(exact)
    assert "64 windows to fit" in text.facts(evaluation, _of_text())["Fit of gain"]


def test_what_happened_to_text() -> None:
    evaluation = make_evaluation(cells=CELLS, rises={"constant": 0.05})
    verdict = judge(evaluation, CALIBRATIONS)
    sentence = text.guard_sentence(evaluation, verdict, 0.02)
    assert "the loss changes by +0.050 nats a token at 1,024 tokens" in sentence
    assert sentence.endswith("above the tolerance of 0.02.")
    assert text.guard_sentence(evaluation, verdict, 0.1).endswith("within the tolerance of 0.1.")
    assert "tolerance" not in text.guard_sentence(evaluation, verdict, None)
    fallen = make_evaluation(cells=CELLS, rises={"constant": -0.05})
    assert f"changes by {MINUS}0.050 nats" in text.guard_sentence(fallen, verdict, 0.02)
    nothing = judge(make_evaluation(cells=CELLS[:2]), {})
    assert text.guard_sentence(evaluation, nothing, 0.02) == ""
    assert text.wording_sentence(evaluation, nothing) == ""
    assert text.controls_sentence(evaluation, nothing) == ""


def test_wordings_and_controls() -> None:
    evaluation = make_evaluation(cells=CELLS)
    verdict = judge(evaluation, CALIBRATIONS)
    worded = text.wording_sentence(evaluation, verdict)
    assert worded.startswith("In wordings that nothing was fitted on, that holds: +30.0 points")
    controls = text.controls_sentence(evaluation, verdict)
    assert controls.startswith("None of the controls that need no fit does as well: paper in all")
    assert "uniform beta 1.1 (45.0%)" in controls
    equal = make_evaluation({**SHARES, "uniform beta 1.1": 0.9}, CELLS)
    assert "uniform beta 1.1 does as well" in text.controls_sentence(equal, verdict)
    usual = make_evaluation(cells=[cell for cell in CELLS if cell.wording == "usual"])
    assert text.wording_sentence(usual, verdict) == ""


def test_what_was_fitted_on_which_text() -> None:
    sentence = text.fitted_sentence(CALIBRATIONS)
    assert sentence.startswith("Monotone on passkey and key-value at 512 and 1,024 tokens in book.")
    assert sentence.endswith("The test is on other book.txt.")
    settings = {**CALIBRATIONS["gain"].notes["settings"], "test_texts": {}}
    kept = {"gain": make_calibration("gain", settings=settings)}
    assert "the last quarter of each, which was kept apart" in text.fitted_sentence(kept)
    assert text.fitted_sentence({}) == ""


def test_what_was_chosen_before_the_test() -> None:
    sentence = text.choice_sentence(CALIBRATIONS)
    assert "before the test, constant+gain is the best calibration" in sentence
    assert "by at least 0.600 with two standard errors" in sentence
    assert text.choice_sentence({"gain": make_calibration("gain", certain=None)}) == ""


def test_facts_count_everything() -> None:
    facts = text.facts(make_evaluation(), CALIBRATIONS)
    assert facts["Model"] == "Abacus <small>, in float32"
    fit = facts["Fit of constant"]
    assert "60 steps of Adam" in fit
    assert "64 questions to fit, 48 questions to select, 32 questions to test" in fit
    assert "4.000 nats per answer before and 3.000 after" in fit
    assert facts["Lengths of the test"] == "1,024 and 2,048 and 4,096 tokens"
    assert facts["Texts of the test"] == "other book.txt, 300,000 characters"
    assert facts["Versions"] == "sharpmax 0.1, torch 2.0"
    plain = {"mine": replace(CALIBRATIONS["gain"], notes={})}
    assert "Fit of mine" not in text.facts(make_evaluation(), plain)
