"""What the report of a diagnosis says in words, with figures from the data."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax.report.diagnosis.tables import readable
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head

WHY: Final = (
    "A head that disperses cannot single one token out among many: what it looks up in a short"
    " input, it averages away in a long one. No model whose logits are bounded escapes that for"
    " ever, since softmax has to share its weight among more and more tokens. What a head is for,"
    " its entropy does not say: some are meant to average, and those are best left alone."
)
SLOPES: Final = (
    "The slope says how the entropy of a head, in nats, grows with log n: at 1 it attends to all"
    " tokens alike, whatever their number; at 0 it attends to as many as ever."
)
ENTROPY: Final = (
    "Each curve is a head: the mean over the measured rows, with one standard deviation shaded. The"
    " dashed line is log n, which no entropy exceeds."
)
CRITICAL: Final = (
    "The lemma needs only the spread of the logits, largest minus smallest. It is a guarantee and"
    " not a forecast: most heads lose their sharpness long before it applies."
)
_OTHERS: Final = {
    "growing": ("one spreads slowly", "{} spread slowly"),
    "flat": ("one stays as sharp as it was", "{} stay as sharp as they were"),
    "sink": (
        "one rests on the first token or on a learned sink",
        "{} rest on the first token or on a learned sink",
    ),
    "local": ("one sees only what is near", "{} see only what is near"),
    None: ("of one nothing can be said", "of {} nothing can be said"),
}
"""What one head does, and what several do."""

_TRIED: Final = 4
"""Heads in the example."""


def what_one_sees(diagnosis: Diagnosis) -> str:
    """The first sentences."""
    found = counts(diagnosis.heads)
    total, spread = len(diagnosis.heads), found.get("dispersing", 0)
    first, last = diagnosis.lengths[0], diagnosis.lengths[-1]
    grow = f"as inputs grow from {first:,} to {last:,} {diagnosis.unit}"
    if spread:
        some = f"{spread:,} disperse" if spread > 1 else "one disperses"
        opening = f"Of {total:,} heads, {some} {grow}: {_their(spread)} attention spreads"
        opening += " over ever more tokens."
    else:
        opening = f"Of {total:,} heads, none disperses {grow}."
    others = [
        (_OTHERS[verdict][n > 1]).format(f"{n:,}")
        for verdict, n in found.items()
        if verdict in _OTHERS
    ]
    if others:
        others[-1] = f"and {others[-1]}" if len(others) > 1 else others[-1]
        joined = ", ".join(others) if len(others) > 2 else " ".join(others)
        opening += f" Of the others, {joined}." if spread else f" {joined[0].upper()}{joined[1:]}."
    worst = diagnosis.worst()[0]
    return f"{opening} {_story(diagnosis, worst)}" if worst.verdict == "dispersing" else opening


def _their(number: int) -> str:
    return "their" if number > 1 else "its"


def _story(diagnosis: Diagnosis, head: Head) -> str:
    """What happens in the worst head, as something to picture."""
    ends = [diagnosis.record(head, diagnosis.lengths[end]) for end in (0, -1)]
    supports = [record.effective_support for record in ends]
    largest = [record.largest_weight for record in ends]
    if None in (*supports, *largest):
        return ""
    before, after = (support.mean for support in supports if support is not None)
    high, low = (weight.mean for weight in largest if weight is not None)
    first, last = diagnosis.lengths[0], diagnosis.lengths[-1]
    return (
        f"In the one that disperses most, head {head.head} of layer {head.layer}, the weight is"
        f" spread as if over {before:,.0f} tokens alike at {first:,} {diagnosis.unit}, and over"
        f" {after:,.0f} at {last:,}; its largest weight goes from {high:.3f} to {low:.3f}."
    )


def critical(diagnosis: Diagnosis) -> str:
    """What the lemma says of this model."""
    records = [diagnosis.record(head) for head in diagnosis.heads if head.verdict != "local"]
    measured = [record for record in records if record.measured]
    if not measured:
        return ""
    lengths = [np.inf if r.critical_length is None else r.critical_length for r in measured]
    spreads = [record.spread.q50 for record in measured if record.spread is not None]
    reached = sum(length <= diagnosis.tokens[-1] for length in lengths)
    soonest = measured[int(np.argmin(lengths))]
    past = {0: "No head is", 1: "One head is"}.get(reached, f"{reached:,} heads are")
    return (
        "By Lemma 2.1, no weight over n logits that are at most δ apart can reach 0.01 once n is"
        f" above exp(δ) / 0.01. Here the median spreads of heads go from {min(spreads):.1f} to"
        f" {max(spreads):.1f}, and half of them are above {float(np.median(spreads)):.1f}. {past}"
        f" beyond that length in the longest input of {diagnosis.tokens[-1]:,.0f} tokens; the"
        f" first to get there is head {soonest.head} of layer {soonest.layer}, at"
        f" {readable(soonest.critical_length)} tokens."
    )


def slopes_alt(diagnosis: Diagnosis) -> str:
    """What the map shows, for those who do not see it."""
    found = counts(diagnosis.heads)
    each = ", ".join(f"{n} {VERDICTS[verdict].label}" for verdict, n in found.items())
    return f"Map of all heads by layer, coloured by the slope of the entropy: {each}."


def entropy_alt(diagnosis: Diagnosis) -> str:
    """The same for the curves."""
    ends = []
    for length in (diagnosis.lengths[0], diagnosis.lengths[-1]):
        entropies = [diagnosis.record(head, length).entropy for head in diagnosis.heads]
        means = [entropy.mean for entropy in entropies if entropy is not None]
        if means:
            ends.append(f"{float(np.median(means)):.2f} nats at {length:,} {diagnosis.unit}")
    return (
        "Entropy of every head against the length, a panel a layer; the median over heads goes from"
        f" {' to '.join(ends)}."
    )


def critical_alt(diagnosis: Diagnosis) -> str:
    """The same for the critical lengths."""
    lengths = [diagnosis.record(head).critical_length for head in diagnosis.heads]
    some = [length for length in lengths if length is not None]
    least = f"the least is {readable(min(some))} tokens" if some else "all are beyond 10^15"
    return f"Critical length of every head by layer; {least}."


def next_commands(diagnosis: Diagnosis) -> str:
    """What to type to calibrate the model, and to evaluate what came out."""
    from sharpmax.models._load import SMOLLM2, SMOLLM2_NAME

    known = {SMOLLM2_NAME: SMOLLM2, "": "MODEL"}
    model = shlex.quote(known.get(diagnosis.model_name, diagnosis.model_name))
    return (
        f"sharpmax calibrate {model} --text FITTED_ON.txt --test-text TESTED_ON.txt\n"
        f"sharpmax evaluate {model} --text TESTED_ON.txt"
        " --calibration build/calibration/calibration.json"
    )


def next_code(diagnosis: Diagnosis) -> str:
    """What to write to sharpen the worst heads, down to what they are in short inputs."""
    heads: dict[int, dict[int, float]] = {}
    for head in diagnosis.worst()[:_TRIED]:
        entropy = diagnosis.record(head, diagnosis.lengths[0]).entropy
        if entropy is not None and head.verdict != "local":
            heads.setdefault(head.layer, {})[head.head] = entropy.mean
    policies = ", ".join(
        f"{layer}: Exponential({np.mean(list(heads[layer].values())):.2f})"
        for layer in sorted(heads)
    )
    chosen = ", ".join(f"{layer}: {sorted(heads[layer])}" for layer in sorted(heads))
    return (
        "import sharpmax\nfrom sharpmax.policies import Exponential\n\n"
        f"policies = {{{policies}}}  # by layer: the entropy at {diagnosis.lengths[0]:,}"
        f" {diagnosis.unit}\n"
        f"with sharpmax.sharpen(model, policies, heads={{{chosen}}}):\n"
        "    output = model.generate(**inputs)"
    )


def facts(diagnosis: Diagnosis) -> dict[str, str]:
    """What was measured, and how."""
    lengths = f"{', '.join(f'{n:,}' for n in diagnosis.lengths)} {diagnosis.unit}"
    if diagnosis.unit != "tokens":
        lengths += f"; in tokens {', '.join(f'{n:,.0f}' for n in diagnosis.tokens)}"
    inputs = f"{diagnosis.inputs:,}" if diagnosis.inputs else "part of the first"
    inputs += f" at each length: {diagnosis.source}" if diagnosis.source else " at each length"
    inputs += "; interrupted, there were more" if diagnosis.interrupted else ""
    found: dict[str, Any] = {
        "Model": f"{diagnosis.name}, of type {diagnosis.model_type}",
        "Numbers": f"weights in {diagnosis.dtype}, figures in single precision at least",
        "Attention of the model": diagnosis.implementation,
        "Inputs": inputs,
        "Lengths": lengths,
        "Rows": (
            f"{diagnosis.which_rows}; with those of every head counted apart,"
            f" {diagnosis.rows_measured:,} measured, {diagnosis.rows_skipped:,} left out without a"
            f" key to see, {diagnosis.rows_non_finite:,} left out as not finite"
        ),
        "Sinks": "left out of entropy, n, largest weight and spread" if diagnosis.sink else "",
        "Not measured": "; ".join(f"{name}: {why}" for name, why in diagnosis.unmeasured.items()),
        "The model's own temperature": "; ".join(diagnosis.notes),
        "Versions": ", ".join(f"{name} {value}" for name, value in diagnosis.versions.items()),
    }
    return {name: value for name, value in found.items() if value}
