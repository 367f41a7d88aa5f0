"""Sentences of the report of calibrations, with figures from the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sharpmax._settings import PLAIN, is_control
from sharpmax.report._page.tables import signed
from sharpmax.report.calibration.arms import in_order
from sharpmax.report.calibration.tables import largest_rise

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


def verdict_sentence(verdict: Verdict) -> str:
    """Say whether sharpening, rather than any calibration, improved the model, and by how much."""
    plain = verdict.against_plain
    if not plain:
        return "No arms were compared, so no conclusion can be drawn about this model."
    if verdict.case == "nothing":
        return _nothing(plain)
    assert verdict.subject is not None
    subject, pair = plain[verdict.subject], verdict.against_gain
    before, after = (_value(subject, share) for share in (subject.other_share, subject.share))
    what = f"raises accuracy on {subject.questions:,} test questions"
    if subject.of_text:
        what = f"lowers the loss on {subject.questions:,} test windows of text"
    effect = f"{what} from {before} to {after} ({_points(subject)})"
    if verdict.case == "no control" or pair is None:
        missing = "gains" if verdict.gain is None else "temperatures"
        return (
            f"The effect of sharpening cannot be isolated. {verdict.subject} {effect}, but there is"
            f" no calibration of {missing} alone to compare with."
        )
    if verdict.case == "undecided":
        return (
            f"The effect of sharpening is undecided. {verdict.subject} {effect}, but the difference"
            f" between temperatures alone and gains alone ({_points(pair)}) is not significant."
        )
    if verdict.case == "gain":
        return (
            f"Sharpening does not explain the improvement. Scaling head outputs alone {effect}."
            f" Changing temperatures alone reaches {_value(pair, pair.share)} (difference:"
            f" {_points(pair)})."
        )
    temperatures = f"Changing the temperature of {_heads(verdict)}"
    if verdict.case == "both":
        warm, loud = verdict.beyond
        return (
            f"Sharpening alone does not explain the improvement. {temperatures} and scaling head"
            f" outputs {effect}. The combination is better than temperatures alone"
            f" ({_points(warm)}) and than gains alone ({_points(loud)})."
        )
    opening = {
        "sharpening": "Sharpening helps.",
        "flattening": "Flattening helps, not sharpening.",
        "any": "The improvement is not specific to sharpening.",
    }[verdict.case]
    return (
        f"{opening} {temperatures} {effect}. Scaling head outputs alone reaches"
        f" {_value(pair, pair.other_share)} (difference: {_points(pair)})."
    )


def _nothing(plain: Mapping[str, Comparison]) -> str:
    each = "; ".join(
        f"{name} {_points(found)}" if found.interval != (0.0, 0.0) else f"{name} none"
        for name, found in plain.items()
    )
    first = next(iter(plain.values()))
    value = _value(first, first.other_share)
    score = f"an accuracy of {value} on {first.questions:,} test questions"
    if first.of_text:
        score = f"a loss of {value} on {first.questions:,} test windows of text"
    return (
        "No calibration significantly improved on the plain model, so leave the model unchanged."
        f" The plain model has {score} (differences: {each})."
    )


def guard_sentence(evaluation: Evaluation, verdict: Verdict, tolerance: float | None) -> str:
    """Say what happened to the loss on ordinary text."""
    rise = largest_rise(evaluation, verdict.subject)
    if rise is None:
        return ""
    length, change, (low, high) = rise
    said = (
        "The largest change in loss on ordinary test text over all lengths is"
        f" {signed(change, 3)} nats per token (95% interval {signed(low, 3)} to {signed(high, 3)}),"
        f" at {length:,} tokens"
    )
    if tolerance is None:
        return f"{said}."
    within = "within" if change <= tolerance else "above"
    return f"{said}; this is {within} the tolerance of {tolerance:g}."


def wording_sentence(evaluation: Evaluation, verdict: Verdict) -> str:
    """Say whether the improvement carries over to wordings that were not used in fitting."""
    from sharpmax.models._evaluation.verdict import compare

    if verdict.subject is None:
        return ""
    usual, unseen = (
        compare(evaluation, verdict.subject, PLAIN, verdict.tasks, wording=wording)
        for wording in ("usual", "unseen")
    )
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

    if verdict.subject is None:
        return ""
    compared = {
        arm: compare(evaluation, verdict.subject, arm, verdict.tasks)
        for arm in evaluation.arms
        if is_control(arm) and arm != "plain"
    }
    found = {arm: each for arm, each in compared.items() if each is not None}
    if not found:
        return ""
    equal = [arm for arm, each in found.items() if not each.better]
    scores = ", ".join(f"{arm} ({_value(one, one.other_share)})" for arm, one in found.items())
    if not equal:
        return f"{verdict.subject} is better than every control that needs no fit: {scores}."
    return (
        f"{verdict.subject} is not significantly better than {' and '.join(equal)}. Controls that"
        f" need no fit: {scores}."
    )


def fitted_sentence(calibrations: Mapping[str, Calibration]) -> str:
    """Say which text was used for fitting, selection and the test."""
    for calibration in calibrations.values():
        settings = calibration.notes.get("settings")
        if settings:
            test = settings["test_texts"]
            held_out = ", ".join(test) if test else "the last quarter of each text, held out"
            return (
                f"Fitted on {' and '.join(settings['tasks'])} at {_numbers(settings['lengths'])}"
                f" tokens in {', '.join(settings['texts'])}, with separate parts of each text for"
                f" fitting and for selecting heads; tested on {held_out}."
            )
    return ""


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
    known = {
        "nats per answer": ("answer loss", " nats"),
        "nats per token": ("text loss", " nats"),
        "share of wrong answers": ("the share of wrong answers", ""),
    }
    return known.get(calibration.objective, (calibration.objective, ""))


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
    kept = []
    for name, calibration in calibrations.items():
        chosen = calibration.notes.get("select", {}).get("chosen")
        what = "none chosen"
        if chosen is not None:
            what = f"chosen with a gain of {chosen['gain']:.2f} and a rise of {chosen['rise']:.3f}"
        kept.append(f"{name}: {what}")
    return f"Improvement of the objective against the rise in text loss; {'; '.join(kept)}."


def facts(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, str]:
    """Return the settings of the fits and of the evaluation by name."""
    settings = evaluation.settings
    found: dict[str, Any] = {"Model": f"{settings.model}, {settings.dtype}"}
    for name, calibration in calibrations.items():
        found[f"Fit of {name}"] = _fit_facts(calibration)
    lengths = sorted({result.length for result in evaluation.results})
    found |= {
        "Questions": (
            f"{settings.questions:,} per cell in {settings.contexts:,} contexts, seed"
            f" {settings.seed}; each maximum question has its own context"
        ),
        "Windows of text": f"up to {settings.windows:,} per cell, without overlap",
        "Test lengths": f"{_numbers(lengths)} tokens",
        "Test texts": "; ".join(
            f"{name}, {size:,} characters" for name, size in settings.texts.items()
        ),
        "Machine": ", ".join(
            f"{evaluation.machine[name]}" for name in ("processor", "system", "architecture")
        ),
        "Versions": ", ".join(f"{name} {value}" for name, value in evaluation.versions.items()),
    }
    return {name: value for name, value in found.items() if value}


def _fit_facts(calibration: Calibration) -> str:
    notes, sizes = calibration.notes, calibration.split_sizes
    if "settings" not in notes or "test" not in notes:
        return ""
    items = "windows" if calibration.objective == "nats per token" else "questions"
    test = notes["test"]["objective"]
    low, high = (signed(end, 3) for end in test["interval"])
    return (
        f"{notes['steps']} steps of Adam, learning rate {notes['learning_rate']:g}, L1 weight"
        f" {notes['shrink']:g}, seed {notes['seed']}; {items} per split: "
        + ", ".join(f"{part} {count}" for part, count in sizes.items())
        + f"; on the test split, {calibration.objective} go from {test['before']:.3f} to"
        f" {test['after']:.3f} ({signed(test['change'], 3)}, 95% interval {low} to {high})"
    )


def _heads(verdict: Verdict) -> str:
    total = verdict.sharper + verdict.flatter
    some = "1 head" if total == 1 else f"{total:,} heads"
    if not verdict.flatter:
        return some
    return f"{some} ({verdict.sharper:,} sharper, {verdict.flatter:,} flatter)"


def _value(found: Comparison, share: float) -> str:
    return f"{share:.3f} nats per token" if found.of_text else f"{100 * share:.1f}%"


def _points(found: Comparison) -> str:
    if found.of_text:
        # A loss falls if it improves.
        high, low = (signed(-end, 3) for end in found.interval)
        return f"{signed(-found.difference, 3)} nats, 95% interval {low} to {high}"
    low, high = (signed(100 * end, 1) for end in found.interval)
    return f"{signed(100 * found.difference, 1)} points, 95% interval {low} to {high}"


def _numbers(values: Iterable[int]) -> str:
    *most, last = (f"{value:,}" for value in values)
    return f"{', '.join(most)} and {last}" if most else last
