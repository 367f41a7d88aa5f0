"""The diagnosis of a model: what was measured of each head at each length, with a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sharpmax._extras import require
from sharpmax._files import DamagedFileError, read_sealed, write_sealed
from sharpmax.models._diagnosis.heads import FIGURES, VERDICTS, Distribution, Head, HeadRecord

FORMAT = "sharpmax diagnosis 2"


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of each head of a model at each length. Made by `sharpmax.diagnose`.

    The verdict on a head is the first of these that holds:

    - "local": at the longest length a window hid keys: rows saw fewer of them than there are tokens
      up to their own. So it is in sliding and chunked layers, once the length is beyond the window.
    - "sink": at the longest length its rows give, in the mean, at least half of their weight to the
      first token and a learned sink. Not asked where sinks were left out of the entropy.
    - "dispersing": the slope of its entropy against log n is at least 0.5.
    - "growing": that slope is at least 0.1.
    - "flat": none of these.

    The numbers are `DISPERSING_SLOPE`, `GROWING_SLOPE` and `SINK_MASS` in
    `sharpmax.models._diagnosis.heads`.

    Attributes:
        model_name: where the weights came from, as the configuration names it; may be empty.
        model_type: of the configuration, such as "llama".
        dtype: of the model. Figures are in single precision at least.
        implementation: the attention that the model uses itself.
        lengths: the numbers of tokens, growing; or the sizes that inputs were given for.
        unit: what the lengths count: "tokens", or what the sizes were said to be.
        tokens: the mean number of tokens of the inputs at each length.
        rows: how many of the last rows of each length were measured, at most half of them.
        tail: how many tokens `tail_mass` is of.
        sink: whether sinks were left out of entropy, n, largest weight and spread.
        inputs: how many inputs were measured to the end, at each length; 0 where the figures are
            of a part of the first one.
        interrupted: whether there were more of them.
        records: one a layer, head and length.
        heads: one a layer and head, with the verdict.
        unmeasured: why attention layers are missing, by name.
        notes: what the model does itself to its temperature as inputs grow.
        versions: of the software that measured it.
        source: what the inputs were, in words; may be empty.
    """

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

    @property
    def name(self) -> str:
        """What to call the model: its name without the folders before it, or its type."""
        return Path(self.model_name).name or self.model_type

    @property
    def which_rows(self) -> str:
        """Which rows were measured, in words."""
        if self.rows == 1:
            return "the last row of each"
        return f"the last {self.rows} rows of each, at most half of them"

    @property
    def rows_measured(self) -> int:
        """How many rows the figures are of, those of each head counted apart."""
        return sum(record.measured for record in self.records)

    @property
    def rows_skipped(self) -> int:
        """How many rows were left out because no key was visible."""
        return sum(record.skipped for record in self.records)

    @property
    def rows_non_finite(self) -> int:
        """How many rows were left out because a figure was NaN or infinite."""
        return sum(record.non_finite for record in self.records)

    def summary(self, limit: int | None = 20) -> str:
        """A table of heads, the worst first; those that see a window alone come apart.

        Args:
            limit: how many heads are shown in each table; None for all.
        """
        inputs = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        inputs = inputs if self.inputs else "part of an input"
        inputs += " (interrupted)" if self.interrupted else ""
        lengths = ", ".join(map(str, self.lengths))
        if self.unit != "tokens":
            lengths += f" {self.unit} ({self.tokens[0]:.0f} to {self.tokens[-1]:.0f} tokens)"
        counters = (
            f"{self.rows_measured} rows measured, {self.rows_skipped} without a key, "
            f"{self.rows_non_finite} not finite"
        )
        lines = [
            f"{self.name} ({self.dtype}, {self.implementation}): {len(self.heads)} heads, {inputs}",
            f"lengths {lengths}; {self.which_rows}",
            counters,
        ]
        if self.sink:
            lines.append("entropy, n, largest weight and spread are without sinks")
        lines += [f"not measured: {where}: {why}" for where, why in self.unmeasured.items()]
        lines += [f"note: {note}" for note in self.notes]
        verdicts = [head.verdict for head in self.heads]
        counts = [(verdict, verdicts.count(verdict)) for verdict in (*VERDICTS, None)]
        lines.append(", ".join(f"{n} {verdict or 'unknown'}" for verdict, n in counts if n))
        for local in (False, True):
            chosen = [head for head in self.worst() if (head.verdict == "local") == local]
            if not chosen:
                continue
            title = (
                f"local heads at {self.lengths[-1]}" if local else f"heads at {self.lengths[-1]}"
            )
            lines += ["", title, *self._table(chosen[:limit])]
            if limit is not None and len(chosen) > limit:
                lines.append(f"and {len(chosen) - limit} more")
        return "\n".join(lines)

    def worst(self) -> list[Head]:
        """The heads in order: by verdict, from dispersing to local, then by falling slope."""
        return sorted(self.heads, key=_badness)

    def record(self, head: Head, length: int | None = None) -> HeadRecord:
        """What was measured of a head at a length; None is the longest.

        Raises:
            LookupError: that was not measured.
        """
        place = (head.layer, head.head, self.lengths[-1] if length is None else length)
        if place not in self._by_place:
            raise LookupError(f"layer {place[0]}, head {place[1]}: not measured at {place[2]}")
        return self._by_place[place]

    def plot_entropy(self, layers: Sequence[int] | None = None) -> Any:
        """Entropy against length: a panel a layer, a curve a head, with its deviation shaded.

        Args:
            layers: indices of the layers to show; by default all, or some evenly apart where there
                are very many.

        Returns:
            A figure of matplotlib.

        Raises:
            MissingExtraError: matplotlib is not installed.
            ValueError: a layer was not measured.
        """
        # Here and below, the one place where this room calls one above it: only for drawing, and
        # only when somebody asks for that.
        from sharpmax.report.diagnosis.entropy import draw_entropy

        return draw_entropy(self, layers)

    def plot_slopes(self) -> Any:
        """A map of all heads: how fast the entropy of each grows, and the verdict on it.

        Returns:
            A figure of matplotlib.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from sharpmax.report.diagnosis.slopes import draw_slopes

        return draw_slopes(self)

    def plot_critical_lengths(self) -> Any:
        """From which length on no weight of a head can reach 0.01, by the lemma: a point a head.

        Returns:
            A figure of matplotlib.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from sharpmax.report.diagnosis.critical import draw_critical_lengths

        return draw_critical_lengths(self)

    def to_html(self, path: str | Path) -> Path:
        """Write a report that anyone can read, as one HTML file that needs nothing else.

        Returns:
            The path.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from sharpmax.report.diagnosis.page import write_diagnosis_page

        return write_diagnosis_page(path, self)

    def to_pandas(self) -> Any:
        """The records as a pandas frame, a row a head and length, with slope and verdict.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = require("pandas", extra="pandas", what="Diagnosis.to_pandas")
        heads = {(head.layer, head.head): head for head in self.heads}
        rows = []
        for record in self.records:
            head = heads[record.layer, record.head]
            rows.append({**record.flat(), "slope": head.slope, "verdict": head.verdict})
        return pandas.DataFrame(rows)

    def to_json(self, path: str | Path) -> Path:
        """Write the diagnosis as JSON, whole or not at all, with a seal.

        Returns:
            The path.
        """
        return write_sealed(path, FORMAT, json.loads(json.dumps(asdict(self), allow_nan=False)))

    @staticmethod
    def from_json(path: str | Path) -> Diagnosis:
        """Read what `to_json` wrote.

        Raises:
            DamagedFileError: the file is cut off, was edited, or is something else.
        """
        content = read_sealed(path, FORMAT)
        del content["kind"]
        try:
            for name, kind in (("records", _record), ("heads", Head)):
                content[name] = tuple(kind(**entry) for entry in content[name])
            for name in ("lengths", "tokens", "notes"):
                content[name] = tuple(content[name])
            return Diagnosis(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(
                f"{path}: not a diagnosis that can be read: {error}; diagnose the model again"
            ) from None

    @cached_property
    def _by_place(self) -> dict[tuple[int, int, int], HeadRecord]:
        return {(r.layer, r.head, r.length): r for r in self.records}

    def _table(self, heads: Sequence[Head]) -> list[str]:
        rows = [
            [
                "layer", "head", "kind", "verdict", "slope", "entropy", "/ log n", "support",
                "largest", "first", "sink", f"last {self.tail}", "spread", "critical",
            ]
        ]  # fmt: skip
        for head in heads:
            record = self.record(head)
            slope = "-" if head.slope is None else f"{head.slope:.2f}"
            figures = [
                _mean(record.entropy, ".2f"),
                _mean(record.normalised_entropy, ".2f"),
                _mean(record.effective_support, ".1f"),
                _mean(record.largest_weight, ".3f"),
                _mean(record.first_mass, ".3f"),
                _mean(record.sink_mass, ".3f"),
                _mean(record.tail_mass, ".3f"),
                _mean(record.spread, ".1f"),
            ]
            critical = "-" if record.critical_length is None else f"{record.critical_length:.3g}"
            verdict = head.verdict or "unknown"
            rows.append(
                [str(head.layer), str(head.head), head.kind, verdict, slope, *figures, critical]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]


def _badness(head: Head) -> tuple[int, float, int, int]:
    order = VERDICTS.index(head.verdict) if head.verdict else len(VERDICTS)
    return order, -math.inf if head.slope is None else -head.slope, head.layer, head.head


def _mean(figure: Distribution | None, layout: str) -> str:
    return "-" if figure is None else format(figure.mean, layout)


def _record(**entry: Any) -> HeadRecord:
    for name in FIGURES:
        if entry[name] is not None:
            entry[name] = Distribution(*entry[name])
    return HeadRecord(**entry)
