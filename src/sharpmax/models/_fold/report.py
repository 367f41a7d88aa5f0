"""What was folded into a model, what was not, and how far it is from the sharpened model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sharpmax._files import RefusedError
from sharpmax.models._calibration.result import Calibration


class CannotFoldError(RefusedError):
    """Raised for a calibration that the weights of a model cannot express."""


@dataclass(frozen=True)
class Folded:
    """What one layer got.

    Attributes:
        index: index of the layer.
        name: name of its module.
        what: "temperature" or "gain".
        heads: number of heads that change.
        parameters: names of the parameters that were multiplied.
    """

    index: int
    name: str
    what: Literal["temperature", "gain"]
    heads: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class NotFolded:
    """What one layer did not get.

    Attributes:
        index: index of the layer.
        name: name of its module.
        what: "temperature" or "gain".
        heads: number of heads that would change.
        reason: why it cannot be folded.
        instead: what is possible instead.
    """

    index: int
    name: str
    what: Literal["temperature", "gain"]
    heads: int
    reason: str
    instead: str


@dataclass(frozen=True)
class FoldReport:
    """What `sharpmax.fold` did.

    Attributes:
        model_name: name of the model.
        folded: what was folded, by layer.
        not_folded: what was left out, by layer; empty unless `partial`.
        rest: the left-out part as a calibration of the folded model, for `sharpmax.sharpen`; None
            if everything was folded.
        difference: largest absolute difference between the logits of the folded model and those of
            the original model sharpened with the folded part.
        tolerance: the largest difference that would have been accepted.
        effect: largest absolute difference between the logits of the folded and the original model.
        agreement: share of positions with the same most likely token as the sharpened model.
        tokens: number of positions compared.
        source: what the logits were computed on.
        dtype: precision of the weights.
        calibration: the calibration.
    """

    model_name: str
    folded: tuple[Folded, ...]
    not_folded: tuple[NotFolded, ...]
    rest: Calibration | None
    difference: float
    tolerance: float
    effect: float
    agreement: float
    tokens: int
    source: str
    dtype: str
    calibration: Calibration

    def summary(self) -> str:
        """Return a few lines: what was folded, how it was verified, what was left out."""
        lines = [f"{self.model_name}: {counted(self.folded)} folded into the weights", self._check]
        if self.not_folded:
            lines.append(f"not folded: {refusals(self.not_folded)}")
        return "\n".join(lines)

    def card(self) -> str:
        """Return a section for a model card, in Markdown: what was changed and measured."""
        layers = len({each.index for each in self.folded})
        changes = (
            f"The weights of this model differ from those of {self.model_name} in the attention of "
            f"{layers} layers: {counted(self.folded)} were multiplied into the weights. A "
            "temperature scales the queries of a head, a gain its output. Everything else is "
            "unchanged, and no extra code is needed to run the model."
        )
        lines = ["## Attention calibration", "", changes, "", f"- Verification: {self._check}."]
        measured = self.calibration.summary().splitlines()[1:]
        lines += [f"- Calibration, on test data, {line}" for line in measured]
        if self.calibration.lengths:
            lengths = ", ".join(f"{length:,}" for length in self.calibration.lengths)
            lines.append(f"- Lengths of the calibration, in tokens: {lengths}.")
        if self.not_folded:
            lines.append(f"- Not folded: {refusals(self.not_folded)}.")
        changed = sorted({name for each in self.folded for name in each.parameters})
        lines += ["", "<details><summary>Changed parameters</summary>", ""]
        lines += [*(f"- `{name}`" for name in changed), "", "</details>", ""]
        return "\n".join(lines)

    @property
    def _check(self) -> str:
        return (
            f"largest logit difference to the sharpened model {self.difference:.1e} (tolerance "
            f"{self.tolerance:.1e} in {self.dtype}; the calibration itself changes logits by up to "
            f"{self.effect:.1e}), same most likely token at {self.agreement:.2%} of "
            f"{self.tokens:,} positions of {self.source}"
        )


def write_card(folder: Path, report: FoldReport, original: str | Path) -> Path:
    """Append the section of a report to the model card of the original, or start a card."""
    before, path = Path(original) / "README.md", folder / "README.md"
    start = before.read_text(encoding="utf-8").rstrip() if before.is_file() else ""
    start = start or f"# {report.model_name}, with calibrated attention"
    path.write_text(f"{start}\n\n{report.card()}", encoding="utf-8")
    return path


def refusals(left: Iterable[NotFolded]) -> str:
    """Return what was left out, with layers of the same reason together."""
    groups: dict[tuple[str, str, str], list[NotFolded]] = {}
    for each in left:
        groups.setdefault((each.what, each.reason, each.instead), []).append(each)
    lines = []
    for (what, reason, instead), members in groups.items():
        heads = sum(each.heads for each in members)
        where = ", ".join(str(each.index) for each in members)
        layers = f"layer {where}" if len(members) == 1 else f"layers {where}"
        lines.append(f"{_plural(heads, what)} of {layers}: {reason}; {instead}")
    return "; ".join(lines)


def counted(folded: Iterable[Folded]) -> str:
    """Return the numbers of temperatures and gains in words."""
    counts = {"temperature": 0, "gain": 0}
    for each in folded:
        counts[each.what] += each.heads
    return " and ".join(_plural(count, what) for what, count in counts.items() if count)


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
