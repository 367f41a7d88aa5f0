"""Put the explorer together as one HTML file that fetches nothing."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from sharpmax._version import __version__

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Distribution, HeadRecord

__all__ = ["explorer_html", "script", "write_explorer"]

_FOLDER: Final = Path(__file__).parent
_MODULES: Final = (
    "mathematics.js", "charts.js", "heads.js", "settings.js", "results.js", "main.js"
)  # fmt: skip
_IMPORT: Final = re.compile(r"^import \{[^}]*\} from \"[^\"]+\";\n", re.MULTILINE)


def explorer_html(diagnosis: Diagnosis | None = None) -> str:
    """Return the page, with the heads of a diagnosis if there is one."""
    title = "Attention explorer"
    if diagnosis is not None:
        title = f"{title}: {diagnosis.name}"
    # No "<" in the data, so that nothing in it can end the script element.
    data = json.dumps(None if diagnosis is None else _data(diagnosis), separators=(",", ":"))
    return Template(_read("page.html")).substitute(
        title=escape(title),
        style=_read("style.css"),
        script=script(*_MODULES),
        data=data.replace("<", "\\u003c"),
        version=__version__,
    )


def write_explorer(path: str | Path, diagnosis: Diagnosis | None = None) -> Path:
    """Write the page to a file; missing folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(explorer_html(diagnosis), encoding="utf-8")
    return path


def script(*modules: str) -> str:
    """Join modules, each after those that it imports from, into one script."""
    joined = "\n".join(_IMPORT.sub("", _read(module)) for module in modules)
    return re.sub(r"^export (?=const|function|async)", "", joined, flags=re.MULTILINE)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _data(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the page shows of a diagnosis, with short names and rounded numbers."""
    from sharpmax.models._diagnosis.examples import BETAS  # brings PyTorch

    heads = []
    for head in diagnosis.heads:
        records = [diagnosis.record(head, length) for length in diagnosis.lengths]
        heads.append(
            {
                "layer": head.layer,
                "head": head.head,
                "slope": _rounded(head.slope),
                "verdict": head.verdict or "unknown",
                "at": {
                    "visible": [_rounded(record.visible) for record in records],
                    "entropy": [_middle(record.entropy) for record in records],
                    "largest": [_middle(record.largest_weight) for record in records],
                    "spread": [_rounded(record.spread and record.spread.q50) for record in records],
                    "sinks": [_sinks(record) for record in records],
                    "tail": [
                        _rounded(record.tail_mass and record.tail_mass.mean) for record in records
                    ],
                },
            }
        )
    return {
        "model": diagnosis.name,
        "source": diagnosis.source,
        "unit": diagnosis.unit,
        "lengths": diagnosis.lengths,
        "tail": diagnosis.tail,
        "heads": heads,
        "examples": [asdict(row) for row in diagnosis.examples],
        "betas": BETAS,
    }


def _middle(figure: Distribution | None) -> list[float | None] | None:
    return figure and [_rounded(value) for value in (figure.mean, figure.q10, figure.q90)]


def _sinks(record: HeadRecord) -> float | None:
    """The weight of the first token and of a learned sink."""
    first, sink = record.first_mass, record.sink_mass
    return None if first is None or sink is None else _rounded(first.mean + sink.mean)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
