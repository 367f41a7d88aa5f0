"""What the report of a calibration says in words, with figures from the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page.tables import Table
from sharpmax.report.calibration.arms import in_order, is_control, looks
from sharpmax.report.calibration.tables import largest_rise

if TYPE_CHECKING:
    from sharpmax.models import Calibration
    from sharpmax.models._evaluation.evaluation import Evaluation
    from sharpmax.models._evaluation.verdict import Comparison, Verdict

ACCURACY: Final = (
    "Bars are 95% intervals of the mean, from resampled contexts. Arms are asked the same"
    " questions, so differences between them are surer than the bars suggest; the tables have them."
)
TRADE: Final = (
    "Each point is some of the heads with some of their fitted change, on the second part of the"
    " data, which chose among them: how much smaller the objective gets, against how much more"
    " ordinary text surprises the model. A ring marks what was kept; below and right of a"
    " point, two standard errors."
)
RULE: Final = (
    "An arm is better than another if the whole 95% interval of the paired difference is above 0,"
    " on all questions of the fitted tasks, at every length and in every wording, with contexts"
    " resampled: questions about one stretch of text count as one. Sharpening did it if"
    " temperatures alone are better than the model as it is and than gains alone; any calibration"
    " does as well if gains alone are not worse; flattening did it if more heads became less sharp"
    " than sharper; both are needed if together they are better than either alone."
)
ASSUMES: Final = (
    "An answer counts as right if greedy decoding gives it token by token; words around it do not"
    " count. Intervals cover the drawing of contexts, not other fits, other texts or other models."
    " Heads were chosen by the second part of the data alone and families compared by it too; the"
    " test has had no part in either. The weights of the model are as they were."
)


def verdict_sentence(verdict: Verdict) -> str:
    """Whether sharpening, and not just any calibration, did it: in one sentence."""
    plain = verdict.against_plain
    if verdict.case == "nothing":
        if not plain:
            return "Nothing was compared, so nothing can be said about this model."
        each = "; ".join(
            f"{name} {_points(found)}" if found.interval != (0.0, 0.0) else f"{name} none"
            for name, found in plain.items()
        )
        first = next(iter(plain.values()))
        if first.of_text:
            return (
                "Nothing held: with no calibration does the model lose less on"
                f" {first.questions:,} test windows of text for certain than the"
                f" {_value(first, first.other_share)} it does as it is (differences: {each}), so"
                " leave it alone."
            )
        return (
            "Nothing held: with no calibration does the model answer more of"
            f" {first.questions:,} test questions right for certain than the"
            f" {_value(first, first.other_share)} it does as it is (differences: {each}), so leave"
            " it alone."
        )
    assert verdict.subject is not None
    subject = plain[verdict.subject]
    now, before = (_value(subject, share) for share in (subject.share, subject.other_share))
    so_far = f"the model answers {now} of {subject.questions:,} test questions right"
    if subject.of_text:
        so_far = f"the model loses {now} on {subject.questions:,} test windows of text"
    so_far += f" instead of {before} ({_points(subject)})"
    pair = verdict.against_gain
    if verdict.case == "no control" or pair is None:
        missing = "gains" if verdict.gain is None else "temperatures"
        return (
            f"Whether sharpening did it cannot be told: with {verdict.subject} {so_far}, but there"
            f" is no calibration of {missing} alone to compare with."
        )
    if verdict.case in ("sharpening", "flattening"):
        did = "Sharpening did it"
        if verdict.case == "flattening":
            did = "Flattening did it, not sharpening"
        return (
            f"{did}: with other temperatures in {_heads(verdict)} {so_far}, and a gain on each"
            f" head's output, which touches no temperature, does not reach that"
            f" ({_value(pair, pair.other_share)}; the difference is {_points(pair)})."
        )
    if verdict.case == "any":
        return (
            f"It was not the sharpening, since any calibration does as well: with other"
            f" temperatures in {_heads(verdict)} {so_far}, and with a gain on each head's output,"
            f" which touches no temperature, {_value(pair, pair.other_share)} (the difference is"
            f" {_points(pair)})."
        )
    if verdict.case == "gain":
        return (
            f"It was not the sharpening: with a gain on each head's output, which touches no"
            f" temperature, {so_far}, and other temperatures alone do not reach that"
            f" ({_value(pair, pair.share)}; the difference is {_points(pair)})."
        )
    if verdict.case == "both":
        warm, loud = verdict.beyond
        return (
            f"Sharpening alone did not do it, both are needed: with other temperatures in"
            f" {_heads(verdict)} and gains {so_far}, {'less' if warm.of_text else 'more'} than with"
            " temperatures alone"
            f" ({_points(warm)}) and than with gains alone ({_points(loud)})."
        )
    return (
        f"It is not decided whether sharpening did it: with {verdict.subject} {so_far}, but the"
        f" difference between temperatures alone and gains alone, {_points(pair)}, may be chance;"
        " more questions would tell."
    )


def guard_sentence(evaluation: Evaluation, verdict: Verdict, tolerance: float | None) -> str:
    """What happened to ordinary text."""
    rise = largest_rise(evaluation, verdict.subject)
    if rise is None:
        return ""
    length, change, (low, high) = rise
    said = (
        f"On ordinary text of the test, the loss changes by {change:+.3f} nats a token at"
        f" {length:,} tokens, where it rises most ({low:+.3f} to {high:+.3f})"
    ).replace("-", "\N{MINUS SIGN}")
    if tolerance is None:
        return f"{said}."
    within = "within" if change <= tolerance else "above"
    return f"{said}, {within} the tolerance of {tolerance:g}."


def wording_sentence(evaluation: Evaluation, verdict: Verdict) -> str:
    """Whether the gain is one of the wordings that it was fitted on."""
    from sharpmax.models._evaluation.verdict import PLAIN, compare

    if verdict.subject is None:
        return ""
    usual, unseen = (
        compare(evaluation, verdict.subject, PLAIN, verdict.tasks, wording=wording)
        for wording in ("usual", "unseen")
    )
    if usual is None or unseen is None:
        return ""
    holds = "holds" if unseen.better else "does not hold for certain"
    return (
        f"In wordings that nothing was fitted on, that {holds}: {_points(unseen)}, against"
        f" {_points(usual)} in the usual one."
    )


def controls_sentence(evaluation: Evaluation, verdict: Verdict) -> str:
    """What the controls that need no fit do."""
    from sharpmax.models._evaluation.verdict import compare

    if verdict.subject is None:
        return ""
    found = {
        arm: compare(evaluation, verdict.subject, arm, verdict.tasks)
        for arm in evaluation.arms
        if is_control(arm) and arm != "plain"
    }
    told = {arm: each for arm, each in found.items() if each is not None}
    if not told:
        return ""
    equal = [arm for arm, each in told.items() if not each.better]
    each = ", ".join(f"{arm} ({_value(one, one.other_share)})" for arm, one in told.items())
    if not equal:
        return f"None of the controls that need no fit does as well: {each}."
    some = "does" if len(equal) == 1 else "do"
    return (
        f"Of the controls that need no fit, {' and '.join(equal)} {some} as well, as far as can be"
        f" told: {each}."
    )


def fitted_sentence(calibrations: Mapping[str, Calibration]) -> str:
    """What was fitted on which text."""
    for calibration in calibrations.values():
        settings = calibration.notes.get("settings")
        if settings:
            test = settings["test_texts"]
            kept = _names(test) if test else "the last quarter of each, which was kept apart"
            return (
                f"Monotone on {' and '.join(settings['tasks'])} at"
                f" {_numbers(settings['lengths'])} tokens in {_names(settings['texts'])}:"
                " in each text one stretch for fitting and another for choosing heads."
                f" The test is on {kept}."
            )
    return ""


def choice_sentence(calibrations: Mapping[str, Calibration]) -> str:
    """Which calibration is the best, as far as could be known before the test."""
    from sharpmax.models._evaluation.study import best

    name = best(calibrations)
    if name is None:
        return ""
    chosen = calibrations[name].notes["select"]["chosen"]
    what, unit = objective_words(calibrations[name])
    return (
        f"By the second part of the data, before the test, {name} is the best calibration: there"
        f" {what} falls by {chosen['gain']:.3f}{unit}, by at least {chosen['certain']:.3f} with two"
        " standard errors."
    )


def objective_words(calibration: Calibration) -> tuple[str, str]:
    """What a calibration makes smaller, and its unit, if it has one, after a blank."""
    known = {
        "nats per answer": ("the loss of answers", " nats"),
        "nats per token": ("the loss on text", " nats"),
        "share of wrong answers": ("the share of wrong answers", ""),
    }
    return known.get(calibration.objective, (calibration.objective, ""))


def arms_table(evaluation: Evaluation) -> Table:
    """What each arm is."""
    rows = [[arm, look.meaning] for arm, look in looks(evaluation.arms).items()]
    return Table(["arm", "what it does"], rows, words=2)


def accuracy_alt(evaluation: Evaluation) -> str:
    """What the figure of accuracy shows, for those who do not see it."""
    tasks = dict.fromkeys(result.task for result in evaluation.results)
    lengths = sorted({result.length for result in evaluation.results})
    return (
        f"Share of right answers against the length of the prompt, from {lengths[0]:,} to"
        f" {lengths[-1]:,} tokens, for {', '.join(tasks)}, with a line for each of"
        f" {', '.join(in_order(evaluation.arms))}."
    )


def trade_alt(calibrations: Mapping[str, Calibration]) -> str:
    """The same for the curve of gain against rise."""
    kept = []
    for name, calibration in calibrations.items():
        chosen = calibration.notes.get("select", {}).get("chosen")
        what = "nothing was kept"
        if chosen is not None:
            what = f"kept with a gain of {chosen['gain']:.2f} and a rise of {chosen['rise']:.3f}"
        kept.append(f"{name}: {what}")
    return f"Gain of the objective against the rise of the loss on text; {'; '.join(kept)}."


def facts(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, str]:
    """What was fitted and measured, and how."""
    settings = evaluation.settings
    found: dict[str, Any] = {"Model": f"{settings.model}, in {settings.dtype}"}
    for name, calibration in calibrations.items():
        found[f"Fit of {name}"] = _fit_facts(calibration)
    lengths = sorted({result.length for result in evaluation.results})
    found |= {
        "Questions": (
            f"{settings.questions:,} a cell, in {settings.contexts:,} contexts, of seed"
            f" {settings.seed}; maxima have a context each"
        ),
        "Windows of text": f"{settings.windows:,} a cell at the most, without overlap",
        "Lengths of the test": f"{_numbers(lengths)} tokens",
        "Texts of the test": "; ".join(
            f"{name}, {size:,} characters" for name, size in settings.texts.items()
        ),
        "Commands": "; ".join(evaluation.command.splitlines()),
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
    said = (
        f"{notes['steps']} steps of Adam, rate {notes['learning_rate']:g}, weight"
        f" {notes['shrink']:g} of the sum of absolute values, seed {notes['seed']}; "
        + ", ".join(f"{count} {items} to {part}" for part, count in sizes.items())
    )
    test = notes["test"]["objective"]
    return (
        f"{said}; on the third part {test['before']:.3f} {calibration.objective} before and"
        f" {test['after']:.3f} after, a change of {test['change']:+.3f}"
        f" ({test['interval'][0]:+.3f} to {test['interval'][1]:+.3f})"
    ).replace("-", "\N{MINUS SIGN}")


def _heads(verdict: Verdict) -> str:
    total = verdict.sharper + verdict.flatter
    some = "one head" if total == 1 else f"{total:,} heads"
    if not verdict.flatter:
        return some
    return f"{some} ({verdict.sharper:,} sharper, {verdict.flatter:,} less sharp)"


def _value(found: Comparison, share: float) -> str:
    return f"{share:.3f} nats a token" if found.of_text else f"{100 * share:.1f}%"


def _points(found: Comparison) -> str:
    if found.of_text:
        # Of the loss, which falls where it gets better.
        high, low = (f"{-end:+.3f}" for end in found.interval)
        said = f"{-found.difference:+.3f} nats, 95% interval {low} to {high}"
        return said.replace("-", "\N{MINUS SIGN}")
    low, high = (f"{100 * end:+.1f}" for end in found.interval)
    said = f"{100 * found.difference:+.1f} points, 95% interval {low} to {high}"
    return said.replace("-", "\N{MINUS SIGN}")


def _names(texts: Mapping[str, int]) -> str:
    return ", ".join(texts)


def _numbers(values: Any) -> str:
    return " and ".join(f"{value:,}" for value in values)
