"""Sentences of the report of calibrations, with figures from the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sharpmax._settings import PLAIN, is_control
from sharpmax.report._page.tables import listed, numbered, signed
from sharpmax.report.calibration.arms import in_order
from sharpmax.report.calibration.tables import largest_rise, level, shown

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation, Verdict
    from sharpmax.models._evaluation.verdict import Comparison

ACCURACY: Final = (
    "Error bars are 95% intervals of the mean, from resampled contexts. All arms answer the same"
    " questions, so the paired differences in the tables are more precise than the bars suggest."
)
TRADE: Final = (
    "Each point is a candidate: a share of the heads with a share of their fitted change, measured"
    " on the selection split. Higher is better for the objective; further right is worse for"
    " ordinary text. A ring marks the chosen candidate. Error bars show two standard errors in the"
    " unfavourable direction."
)
RULE: Final = (
    "An arm is better than another if the 95% interval of the paired difference is entirely above"
    " 0. The comparison uses all questions of the fitted tasks, at every length and in every"
    " wording. Contexts are resampled, so questions about the same passage count as one cluster."
    " Sharpening helps if temperatures alone are better than the plain model and better than gains"
    " alone; if more heads become flatter than sharper, the report says flattening. The improvement"
    " is not specific to sharpening if gains alone help as much. Both are needed if the combination"
    " is better than either alone."
)
ASSUMES: Final = (
    "An answer is correct if greedy decoding produces exactly its tokens; what follows is not"
    " scored. Intervals cover the sampling of contexts, not other fits, texts or models. Heads and"
    " families were chosen on the selection split; the test data had no part in it. The weights of"
    " the model are unchanged."
)
_SCORES: Final = {
    False: ("an accuracy of {} on {:,} test questions",
            "raises accuracy on {:,} test questions from {} to {} ({})"),
    True: ("a loss of {} on {:,} test windows of text",
           "lowers the loss on {:,} test windows of text from {} to {} ({})"),
}  # fmt: skip
"""What the plain model scores and what a calibration changes, on questions and on text."""

_ALONE: Final = (
    " Changing the temperature of {heads} {effect}. Scaling head outputs alone reaches {loud}"
    " (difference: {pair})."
)
_CASES: Final = {
    "no control":
        "The effect of sharpening cannot be isolated. {subject} {effect}, but there is no"
        " calibration of {missing} alone to compare with.",
    "undecided":
        "The effect of sharpening is undecided. {subject} {effect}, but the difference between"
        " temperatures alone and gains alone ({pair}) is not significant.",
    "gain":
        "Sharpening does not explain the improvement. Scaling head outputs alone {effect}."
        " Changing temperatures alone reaches {warm} (difference: {pair}).",
    "both":
        "Sharpening alone does not explain the improvement. Changing the temperature of {heads} and"
        " scaling head outputs {effect}. The combination is better than temperatures alone"
        " ({beyond[0]}) and than gains alone ({beyond[1]}).",
    "sharpening": f"Sharpening helps.{_ALONE}",
    "flattening": f"Flattening helps, not sharpening.{_ALONE}",
    "any": f"The improvement is not specific to sharpening.{_ALONE}",
}  # fmt: skip
"""The verdict in words, by its case."""


def verdict_sentence(verdict: Verdict) -> str:
    """Say whether sharpening, rather than any calibration, improved the model, and by how much."""
    plain, pair = verdict.against_plain, verdict.against_gain
    if not plain:
        return "No arms were compared, so no conclusion can be drawn about this model."
    if verdict.subject is None:
        each = (f"{n} {_points(c) if any(c.interval) else 'none'}" for n, c in plain.items())
        first = next(iter(plain.values()))
        score = _SCORES[first.of_text][0].format(_value(first, first.other_share), first.questions)
        return (
            "No calibration significantly improved on the plain model, so leave the model"
            f" unchanged. The plain model has {score} (differences: {'; '.join(each)})."
        )
    found = plain[verdict.subject]
    before, after = (_value(found, share) for share in (found.other_share, found.share))
    heads = numbered(verdict.sharper + verdict.flatter, "head")
    if verdict.flatter:
        heads += f" ({verdict.sharper:,} sharper, {verdict.flatter:,} flatter)"
    effect = _SCORES[found.of_text][1].format(found.questions, before, after, _points(found))
    missing = "gains" if verdict.gain is None else "temperatures"
    words = {"subject": verdict.subject, "effect": effect, "heads": heads, "missing": missing}
    if pair is None:
        return _CASES["no control"].format(**words)
    warm, loud = (_value(pair, share) for share in (pair.share, pair.other_share))
    beyond = [_points(each) for each in verdict.beyond]
    return _CASES[verdict.case].format(
        **words, pair=_points(pair), warm=warm, loud=loud, beyond=beyond
    )


def guard_sentence(evaluation: Evaluation, verdict: Verdict, tolerance: float | None) -> str:
    """Say what happened to the loss on ordinary text."""
    found = largest_rise(evaluation, verdict.subject)
    if found is None:
        return ""
    length, rise, interval = found
    change, low, high = (signed(each, 3) for each in (rise, *interval))
    said = (
        f"The largest change in loss on ordinary test text over all lengths is {change} nats per"
        f" token (95% interval {low} to {high}), at {length:,} tokens"
    )
    if tolerance is None:
        return f"{said}."
    within = "within" if rise <= tolerance else "above"
    return f"{said}; this is {within} the tolerance of {tolerance:g}."


def wording_sentence(evaluation: Evaluation, verdict: Verdict) -> str:
    """Say whether the improvement carries over to wordings that were not used in fitting."""
    from sharpmax.models._evaluation.verdict import compare

    subject, tasks = verdict.subject, verdict.tasks
    usual = compare(evaluation, subject, PLAIN, tasks, wording="usual")
    unseen = compare(evaluation, subject, PLAIN, tasks, wording="unseen")
    if usual is None or unseen is None:
        return ""
    holds = "holds" if unseen.better else "is not significant"
    return (
        f"In wordings that were not used in fitting, the improvement {holds}: {_points(unseen)},"
        f" compared with {_points(usual)} in the fitted wordings."
    )


def controls_sentence(evaluation: Evaluation, verdict: Verdict) -> str:
    """Compare the verdict's subject with the controls that need no fit."""
    from sharpmax.models._evaluation.verdict import compare

    subject = verdict.subject
    controls = [arm for arm in evaluation.arms if is_control(arm) and arm != PLAIN]
    compared = (compare(evaluation, subject, arm, verdict.tasks) for arm in controls)
    found = [each for each in compared if each is not None]
    if not found:
        return ""
    scores = ", ".join(f"{each.other} ({_value(each, each.other_share)})" for each in found)
    if equal := " and ".join(each.other for each in found if not each.better):
        start = f"{subject} is not significantly better than {equal}."
        return f"{start} Controls that need no fit: {scores}."
    return f"{subject} is better than every control that needs no fit: {scores}."


def fitted_sentence(calibrations: Mapping[str, Calibration]) -> str:
    """Say which text was used for fitting, selection and the test."""
    noted = (calibration.notes.get("settings") for calibration in calibrations.values())
    settings = next(filter(None, noted), None)
    if settings is None:
        return ""
    lengths = listed(f"{length:,}" for length in settings["lengths"])
    held_out = ", ".join(settings["test_texts"]) or "the last quarter of each text, held out"
    return (
        f"Fitted on {' and '.join(settings['tasks'])} at {lengths} tokens in"
        f" {', '.join(settings['texts'])}, with separate parts of each text for fitting and for"
        f" selecting heads; tested on {held_out}."
    )


def choice_sentence(calibrations: Mapping[str, Calibration]) -> str:
    """Say which calibration was the best before the test."""
    from sharpmax.models._evaluation.heads import best

    name = best(calibrations)
    if name is None:
        return ""
    chosen = calibrations[name].notes["select"]["chosen"]
    what, unit = objective_words(calibrations[name])
    return (
        f"The selection split, without the test data, ranks {name} first: it lowers {what} by"
        f" {chosen['gain']:.3f}{unit}, and by at least {chosen['certain']:.3f} allowing for two"
        " standard errors."
    )


def objective_words(calibration: Calibration) -> tuple[str, str]:
    """Return what a calibration minimises, and its unit after a space, if it has one."""
    known = {"nats per answer": ("answer loss", " nats"), "nats per token": ("text loss", " nats")}
    wrong = {"share of wrong answers": ("the share of wrong answers", "")}
    return (known | wrong).get(calibration.objective, (calibration.objective, ""))


def accuracy_alt(evaluation: Evaluation) -> str:
    """Describe the figure of accuracy."""
    tasks = dict.fromkeys(result.task for result in evaluation.results)
    lengths = sorted({result.length for result in evaluation.results})
    return (
        f"Accuracy against prompt length, from {lengths[0]:,} to {lengths[-1]:,} tokens, for"
        f" {', '.join(tasks)}, with one line per arm: {', '.join(in_order(evaluation.arms))}."
    )


def trade_alt(calibrations: Mapping[str, Calibration]) -> str:
    """Describe the figure of the trade-off."""
    told = "chosen with a gain of {gain:.2f} and a rise of {rise:.3f}"
    kept = {name: each.notes.get("select", {}).get("chosen") for name, each in calibrations.items()}
    each = (f"{name}: {told.format(**c) if c else 'none chosen'}" for name, c in kept.items())
    return f"Improvement of the objective against the rise in text loss; {'; '.join(each)}."


def facts(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, str]:
    """Return the settings of the fits and of the evaluation by name."""
    settings = evaluation.settings
    lengths = sorted({result.length for result in evaluation.results})
    found = {
        "Model": f"{settings.model}, {settings.dtype}",
        **{f"Fit of {name}": _fit_facts(each) for name, each in calibrations.items()},
        "Questions": f"{settings.questions:,} per cell in {settings.contexts:,} contexts, seed"
        f" {settings.seed}; each maximum question has its own context",
        "Windows of text": f"up to {settings.windows:,} per cell, without overlap",
        "Test lengths": f"{listed(f'{length:,}' for length in lengths)} tokens",
        "Test texts": "; ".join(f"{name}, {n:,} characters" for name, n in settings.texts.items()),
        "Machine": ", ".join(
            str(evaluation.machine[each])
            for each in ("processor", "system", "architecture")
            if each in evaluation.machine
        ),
        "Versions": ", ".join(f"{name} {value}" for name, value in evaluation.versions.items()),
    }
    return {name: value for name, value in found.items() if value}


def _fit_facts(calibration: Calibration) -> str:
    notes, sizes = calibration.notes, calibration.split_sizes
    if not {"settings", "test", "steps", "learning_rate", "shrink", "seed"} <= notes.keys():
        return ""
    items = "windows" if calibration.objective == "nats per token" else "questions"
    test = notes["test"]["objective"]
    change, low, high = (signed(each, 3) for each in (test["change"], *test["interval"]))
    return (
        f"{notes['steps']} steps of Adam, learning rate {notes['learning_rate']:g}, L1 weight"
        f" {notes['shrink']:g}, seed {notes['seed']}; {items} per split:"
        f" {', '.join(f'{part} {count}' for part, count in sizes.items())}; on the test split,"
        f" {calibration.objective} go from {test['before']:.3f} to {test['after']:.3f} ({change},"
        f" 95% interval {low} to {high})"
    )


def _value(found: Comparison, share: float) -> str:
    return f"{level(share, found.of_text)}{' nats per token' if found.of_text else '%'}"


def _points(found: Comparison) -> str:
    difference, low, high = shown(found)
    unit = "nats" if found.of_text else "points"
    return f"{difference} {unit}, 95% interval {low} to {high}"
