"""Sentences of the report of a diagnosis, with figures from the data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sharpmax.report._page.tables import listed, numbered
from sharpmax.report.diagnosis.tables import mean, readable
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head

WHY: Final = (
    "A dispersing head cannot pick out one token among many: what it retrieves from a short input,"
    " it averages away in a long one. Softmax over bounded logits cannot avoid this, because it"
    " divides its weight among more and more tokens. Dispersion is not necessarily a fault: some"
    " heads are meant to average, and those are best left alone."
)
SLOPES: Final = (
    "The slope is the growth of a head's entropy, in nats, per unit of log n. At 1, the head"
    " attends uniformly to all tokens. At 0, it attends to a constant number of tokens."
)
ENTROPY: Final = (
    "One curve per head: the mean over the measured rows, with a band of one standard deviation."
    " The dashed line is log n, the largest possible entropy."
)
CRITICAL: Final = (
    "The lemma uses only the logit spread, the largest logit minus the smallest. It is a guarantee,"
    " not a forecast: most heads lose their sharpness long before it applies."
)
NEXT: Final = (
    "Sharpening every head of a model that was trained without it usually does harm, so let"
    " held-out data decide. Calibration fits one or two numbers per head and keeps only what helps"
    " on data that it was not fitted on; if nothing helps, it leaves the model unchanged."
    " Evaluation measures the effect on long inputs, next to controls that do not sharpen."
)
_OTHERS: Final = {
    "growing": ("1 spreads slowly", "{} spread slowly"),
    "flat": ("1 stays sharp", "{} stay sharp"),
    "sink": ("1 puts most of its weight on the first token or a learned sink",
             "{} put most of their weight on the first token or a learned sink"),
    "local": ("1 has a sliding window", "{} have a sliding window"),
    None: ("1 could not be measured", "{} could not be measured"),
}  # fmt: skip
"""What one head does, and what several do."""

_TRIED: Final = 4
"""Heads in the example."""


def conclusion(diagnosis: Diagnosis) -> str:
    """Say how many heads disperse, what the others do, and what happens in the worst head."""
    found, total = counts(diagnosis.heads), numbered(len(diagnosis.heads), "head")
    number = found.pop("dispersing", 0)
    first, last = diagnosis.lengths[0], diagnosis.lengths[-1]
    growth = f"as inputs grow from {first:,} to {last:,} {diagnosis.unit}"
    verb, their = ("disperses", "its") if number == 1 else ("disperse", "their")
    spreads = f"{their} attention spreads over more and more tokens."
    said = f"{number:,} of {total} {verb} {growth}: {spreads}"
    said = said if number else f"No head disperses {growth}."
    if others := [_OTHERS[verdict][n > 1].format(f"{n:,}") for verdict, n in found.items()]:
        said += f" Of the {'others' if number else total}, {listed(others, comma=',')}."
    worst = diagnosis.worst()[0]
    ends = [diagnosis.record(worst, length) for length in (first, last)]
    if not number or not all(record.measured for record in ends):
        return said
    before, after = (mean(record, "effective_support") for record in ends)
    high, low = (mean(record, "largest_weight") for record in ends)
    return (
        f"{said} In the head that disperses most (layer {worst.layer}, head {worst.head}), the"
        f" effective number of attended tokens goes from {before} at {first:,} {diagnosis.unit} to"
        f" {after} at {last:,}, and the largest weight from {high} to {low}."
    )


def local(diagnosis: Diagnosis, heads: Sequence[Head]) -> str:
    """Describe the heads with a sliding window."""
    layers = sorted({head.layer for head in heads})
    largest = max(diagnosis.record(head).visible or 0.0 for head in heads)
    where = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
    return (
        f"{numbered(len(heads), 'head')} in {where} {'sees' if len(heads) == 1 else 'see'} at most"
        f" {largest:,.0f} tokens, whatever the length of the input. These heads do not disperse"
        " with length, and cannot retrieve anything from outside the window."
    )


def critical(diagnosis: Diagnosis) -> str:
    """Say what the lemma implies for this model."""
    records = [diagnosis.record(head) for head in diagnosis.heads if head.verdict != "local"]
    measured = [record for record in records if record.measured]
    if not measured:
        return ""
    lengths = [np.inf if r.critical_length is None else r.critical_length for r in measured]
    spreads = [record.spread.q50 for record in measured if record.spread is not None]
    reached = sum(length <= diagnosis.tokens[-1] for length in lengths)
    soonest = measured[int(np.argmin(lengths))]
    past = f"{numbered(reached, 'head')} {'reaches' if reached == 1 else 'reach'}"
    return (
        "By Lemma 2.1 (arXiv 2410.01104), if n logits differ by at most δ, no weight can reach 0.01"
        " once n exceeds exp(δ) / 0.01, the critical length. The median logit spread δ per head"
        f" ranges from {min(spreads):.1f} to {max(spreads):.1f}, with a median of"
        f" {np.median(spreads):.1f}. {past if reached else 'No head reaches'} the critical length"
        f" within the longest input measured ({diagnosis.tokens[-1]:,.0f} tokens). The shortest"
        f" critical length is {readable(soonest.critical_length)} tokens, in layer"
        f" {soonest.layer}, head {soonest.head}."
    )


def slopes_alt(diagnosis: Diagnosis) -> str:
    """Describe the map of slopes."""
    each = (f"{n} {VERDICTS[verdict].label}" for verdict, n in counts(diagnosis.heads).items())
    return f"Map of all heads by layer, coloured by the slope of the entropy: {', '.join(each)}."


def entropy_alt(diagnosis: Diagnosis) -> str:
    """Describe the curves of entropy."""
    ends = []
    for length in (diagnosis.lengths[0], diagnosis.lengths[-1]):
        entropies = [diagnosis.record(head, length).entropy for head in diagnosis.heads]
        if means := [entropy.mean for entropy in entropies if entropy is not None]:
            ends.append(f"{float(np.median(means)):.2f} nats at {length:,} {diagnosis.unit}")
    median = f"; the median over heads goes from {' to '.join(ends)}" if ends else ""
    return f"Entropy of every head against the length, with one panel per layer{median}."


def critical_alt(diagnosis: Diagnosis) -> str:
    """Describe the figure of critical lengths."""
    lengths = filter(None, (diagnosis.record(head).critical_length for head in diagnosis.heads))
    some = min(lengths, default=None)
    least = f"the shortest is {readable(some)} tokens" if some else "all are beyond 10^15"
    return f"Critical length of every head by layer; {least}."


def next_commands(diagnosis: Diagnosis) -> str:
    """Return the commands that calibrate the model and evaluate the result."""
    from sharpmax.models._load import PACKAGED

    known = {"": "MODEL"} | {packaged.title: name for name, packaged in PACKAGED.items()}
    model = shlex.quote(known.get(diagnosis.model_name, diagnosis.model_name))
    return (
        f"sharpmax calibrate {model} --text FITTED_ON.txt --test-text TESTED_ON.txt\n"
        f"sharpmax evaluate {model} --text TESTED_ON.txt"
        " --calibration build/calibration/calibration.json"
    )


def next_code(diagnosis: Diagnosis) -> str:
    """Return code that sharpens the worst heads down to their entropy on short inputs."""
    heads: dict[int, dict[int, float]] = {}
    for head in diagnosis.worst()[:_TRIED]:
        entropy = diagnosis.record(head, diagnosis.lengths[0]).entropy
        if entropy is not None and head.verdict != "local":
            heads.setdefault(head.layer, {})[head.head] = entropy.mean
    mine = sorted(heads.items())
    policies = (f"{layer}: Exponential({np.mean([*each.values()]):.2f})" for layer, each in mine)
    chosen = (f"{layer}: {sorted(each)}" for layer, each in mine)
    return (
        "import sharpmax\nfrom sharpmax.policies import Exponential\n\n"
        f"policies = {{{', '.join(policies)}}}  # by layer: the entropy at"
        f" {diagnosis.lengths[0]:,} {diagnosis.unit}\n"
        f"with sharpmax.sharpen(model, policies, heads={{{', '.join(chosen)}}}):\n"
        "    output = model.generate(**inputs)"
    )


def facts(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the settings of the diagnosis by name."""
    lengths = f"{', '.join(f'{n:,}' for n in diagnosis.lengths)} {diagnosis.unit}"
    if diagnosis.unit != "tokens":
        lengths += f" ({', '.join(f'{n:,.0f}' for n in diagnosis.tokens)} tokens)"
    inputs = f"{diagnosis.inputs:,} per length" if diagnosis.inputs else "part of the first"
    inputs += f": {diagnosis.source}" if diagnosis.source else ""
    inputs += "; interrupted before all inputs were measured" if diagnosis.interrupted else ""
    found = {
        "Model": f"{diagnosis.name}, type {diagnosis.model_type}",
        "Precision": f"weights in {diagnosis.dtype}, statistics in at least single precision",
        "Attention implementation": diagnosis.implementation,
        "Inputs": inputs,
        "Lengths": lengths,
        "Rows": f"{diagnosis.which_rows}; summed over heads: {diagnosis.rows_measured:,} measured,"
        f" {diagnosis.rows_skipped:,} skipped without a visible key,"
        f" {diagnosis.rows_non_finite:,} skipped as not finite",
        "Sinks": "excluded from entropy, n, largest weight and spread" if diagnosis.sink else "",
        "Not measured": "; ".join(f"{name}: {why}" for name, why in diagnosis.unmeasured.items()),
        "Temperature of the model itself": "; ".join(diagnosis.notes),
        "Versions": ", ".join(f"{name} {value}" for name, value in diagnosis.versions.items()),
    }
    return {name: value for name, value in found.items() if value}
