"""The diagnosis of a model: the measurements of each head at each length, with a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from sharpmax._extras import require
from sharpmax._files import typed_fields
from sharpmax.models._diagnosis.examples import ExampleRow
from sharpmax.models._diagnosis.heads import VERDICTS, Head, HeadRecord
from sharpmax.models._saved import Saved

_COLUMNS = {
    "entropy": ("entropy", ".2f"), "/ log n": ("normalised_entropy", ".2f"),
    "support": ("effective_support", ".1f"), "largest": ("largest_weight", ".3f"),
    "first": ("first_mass", ".3f"), "sink": ("sink_mass", ".3f"),
    "last {tail}": ("tail_mass", ".3f"), "spread": ("spread", ".1f"),
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis(Saved):
    """The measurements of each head of a model at each length, from `sharpmax.diagnose`.

    The verdict on a head is the first of these that holds:

    - "local": at the longest length, a window hid keys, so that rows saw fewer keys than there are
      tokens up to their own. This is the case in sliding and chunked layers beyond their window.
    - "sink": at the longest length, rows give on average at least half of their weight to the first
      token and a learned sink. Does not apply if sinks were excluded.
    - "dispersing": the slope of the entropy against log n is at least 0.5.
    - "growing": that slope is at least 0.1.
    - "flat": none of these.

    Attributes:
        model_name: origin of the weights, from the configuration; may be empty.
        model_type: type in the configuration, such as "llama".
        dtype: precision of the model. Figures are in single precision at least.
        implementation: the attention that the model itself uses.
        lengths: numbers of tokens, or sizes of the inputs, ascending.
        unit: what the lengths count: "tokens", or the unit of the sizes.
        tokens: mean number of tokens of the inputs at each length.
        rows: number of measured rows per length, at most half of the length.
        tail: number of tokens that `tail_mass` sums over.
        sink: whether sinks were excluded from entropy, n, largest weight and spread.
        inputs: number of finished inputs per length; 0 if only some of the first was measured.
        interrupted: whether the measurement was interrupted before the last input.
        records: one per layer, head and length.
        heads: one per layer and head, with the verdict.
        unmeasured: why attention layers are missing, by name.
        notes: how the model itself changes its temperature as inputs grow.
        versions: versions of the software that measured it.
        source: description of the inputs; may be empty.
        examples: recorded rows, if there were to be examples.
    """

    FORMAT: ClassVar[str] = "sharpmax diagnosis 2"

    model_name: str
    model_type: str
    dtype: str
    implementation: str
    lengths: tuple[int, ...]
    unit: str
    tokens: tuple[float, ...]
    rows: int
    tail: int
    sink: bool
    inputs: int
    interrupted: bool
    records: tuple[HeadRecord, ...]
    heads: tuple[Head, ...]
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    examples: tuple[ExampleRow, ...] = ()

    @property
    def name(self) -> str:
        """The name of the model without its folders, or its type."""
        return Path(self.model_name).name or self.model_type

    @property
    def which_rows(self) -> str:
        """Which rows were measured, as text."""
        if self.rows == 1:
            return "the last row of each"
        return f"the last {self.rows} rows of each, at most half of them"

    @property
    def rows_measured(self) -> int:
        """The number of measured rows, summed over heads and lengths."""
        return sum(record.measured for record in self.records)

    @property
    def rows_skipped(self) -> int:
        """The number of rows without visible keys, which are left out."""
        return sum(record.skipped for record in self.records)

    @property
    def rows_non_finite(self) -> int:
        """The number of rows with a NaN or infinite figure, which are left out."""
        return sum(record.non_finite for record in self.records)

    def summary(self, limit: int | None = 20) -> str:
        """Return a table of heads, the worst first, and another one for local heads.

        Args:
            limit: largest number of heads per table; None for all.
        """
        inputs = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        inputs = inputs if self.inputs else "an unfinished input"
        inputs += " (interrupted)" if self.interrupted else ""
        lengths = ", ".join(map(str, self.lengths))
        if self.unit != "tokens" and self.tokens == tuple(map(float, self.lengths)):
            lengths += f" {self.unit}"
        elif self.unit != "tokens":
            lengths += f" {self.unit} ({self.tokens[0]:.0f} to {self.tokens[-1]:.0f} tokens)"
        measured, skipped, wrong = self.rows_measured, self.rows_skipped, self.rows_non_finite
        lines = [
            f"{self.name} ({self.dtype}, {self.implementation}): {len(self.heads)} heads, {inputs}",
            f"lengths {lengths}; {self.which_rows}",
            f"{measured} rows measured, {skipped} without visible keys, {wrong} not finite",
        ]
        if self.sink:
            lines.append("entropy, n, largest weight and spread exclude sinks")
        lines += [f"not measured: {where}: {why}" for where, why in self.unmeasured.items()]
        lines += [f"note: {note}" for note in self.notes]
        verdicts = [head.verdict for head in self.heads]
        counts = [(verdict, verdicts.count(verdict)) for verdict in (*VERDICTS, None)]
        lines.append(", ".join(f"{n} {verdict or 'unknown'}" for verdict, n in counts if n))
        for title, local in (("heads", False), ("local heads", True)):
            chosen = [head for head in self.worst() if (head.verdict == "local") == local]
            if chosen:
                lines += ["", f"{title} at {self.lengths[-1]}", *self._table(chosen[:limit])]
            if limit is not None and len(chosen) > limit:
                lines.append(f"and {len(chosen) - limit} more")
        return "\n".join(lines)

    def worst(self) -> list[Head]:
        """Return the heads by verdict, from dispersing to local, then by descending slope."""
        return sorted(self.heads, key=_badness)

    def record(self, head: Head, length: int | None = None) -> HeadRecord:
        """Return the record of a head at a length; by default the longest.

        Raises:
            LookupError: the head was not measured at this length.
        """
        place = (head.layer, head.head, self.lengths[-1] if length is None else length)
        if place not in self._by_place:
            raise LookupError(f"layer {place[0]}, head {place[1]}: not measured at {place[2]}")
        return self._by_place[place]

    def plot_entropy(self, layers: Sequence[int] | None = None) -> Any:
        """Plot entropy against length: one panel per layer, one curve per head.

        Args:
            layers: indices of the layers; by default all, or a selection if there are very many.

        Returns:
            A matplotlib figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
            ValueError: a layer was not measured.
        """
        return _report().draw_entropy(self, layers)

    def plot_slopes(self) -> Any:
        """Plot a map of all heads: the slope of the entropy, and the verdict.

        Returns:
            A matplotlib figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return _report().draw_slopes(self)

    def plot_critical_lengths(self) -> Any:
        """Plot the length from which on no weight can reach 0.01, one point per head.

        Returns:
            A matplotlib figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return _report().draw_critical_lengths(self)

    def to_html(self, path: str | Path) -> Path:
        """Write a report as one self-contained HTML file.

        Returns:
            The path.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        written: Path = _report().write_diagnosis_page(path, self)
        return written

    def to_pandas(self) -> Any:
        """Return the records as a pandas DataFrame, one row per head and length.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = require("pandas", extra="pandas", what="Diagnosis.to_pandas")
        trends = {(h.layer, h.head): {"slope": h.slope, "verdict": h.verdict} for h in self.heads}
        return pandas.DataFrame([r.flat() | trends[r.layer, r.head] for r in self.records])

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        if not self.examples:
            # As in files of earlier versions, which know no examples.
            del plain["examples"]
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Diagnosis:
        made: Diagnosis = typed_fields({"examples": [], **data}, cls)
        if not made.heads or len(made.tokens) != len(made.lengths) or min(made.lengths) < 1:
            raise ValueError("expected some heads, positive lengths and as many numbers of tokens")
        for head in made.heads:
            for length in made.lengths:
                made.record(head, length)
        return made

    @cached_property
    def _by_place(self) -> dict[tuple[int, int, int], HeadRecord]:
        return {(r.layer, r.head, r.length): r for r in self.records}

    def _table(self, heads: Sequence[Head]) -> list[str]:
        titles = [title.format(tail=self.tail) for title in _COLUMNS]
        rows = [["layer", "head", "kind", "verdict", "slope", *titles, "critical"]]
        for head in heads:
            record = self.record(head)
            row = [str(head.layer), str(head.head), head.kind, head.verdict or "unknown"]
            row.append(_cell(head.slope, ".2f"))
            for name, layout in _COLUMNS.values():
                figure = getattr(record, name)
                row.append(_cell(figure and figure.mean, layout))
            rows.append([*row, _cell(record.critical_length, ".3g")])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def _report() -> Any:
    """Load `sharpmax.report.diagnosis` by name: the one call to a room above, made on demand."""
    return import_module("sharpmax.report.diagnosis")


def _badness(head: Head) -> tuple[int, float, int, int]:
    order = (*VERDICTS, None).index(head.verdict)
    return order, -math.inf if head.slope is None else -head.slope, head.layer, head.head


def _cell(value: float | None, layout: str) -> str:
    return "-" if value is None else format(value, layout)
