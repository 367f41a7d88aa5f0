"""The table and the file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import sharpmax
from model_families import shared
from sharpmax import MissingExtraError
from sharpmax._files import write_sealed
from sharpmax.models import DamagedFileError, Diagnosis, Distribution
from sharpmax.models._diagnosis.heads import VERDICTS


def made() -> Diagnosis:
    return sharpmax.diagnose(shared("gemma2"), [*range(4, 44)], [10, 20, 40])


def test_round_trip(tmp_path: Path) -> None:
    diagnosis = made()
    path = diagnosis.save(tmp_path / "deep" / "gemma.json")
    again = Diagnosis.load(path)
    assert again == diagnosis
    assert isinstance(again.records[0].entropy, Distribution)
    assert again.summary() == diagnosis.summary()
    assert Diagnosis.from_dict(json.loads(diagnosis.to_json())) == diagnosis
    assert json.loads(path.read_text("utf-8"))["kind"] == Diagnosis.FORMAT


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = made().save(tmp_path / "gemma.json")
    text = path.read_text("utf-8")
    path.write_text(text[: len(text) // 2], "utf-8")
    with pytest.raises(DamagedFileError, match="truncated"):
        Diagnosis.load(path)
    path.write_text(text.replace('"verdict": "local"', '"verdict": "flat"'), "utf-8")
    with pytest.raises(DamagedFileError, match="changed after it was written"):
        Diagnosis.load(path)
    write_sealed(path, Diagnosis.FORMAT, {"model_name": "x"})
    with pytest.raises(DamagedFileError, match="expected a diagnosis, got data that do not fit"):
        Diagnosis.load(path)
    write_sealed(path, "something else", {})
    with pytest.raises(DamagedFileError, match="expected a file of kind"):
        Diagnosis.load(path)


def test_the_worst_heads_come_first() -> None:
    diagnosis = made()
    lines = diagnosis.summary(limit=2).splitlines()
    assert lines[0] == "gemma2 (float32, eager): 8 heads, 1 input"
    assert lines[1] == "lengths 10, 20, 40; the last 64 rows of each, at most half of them"
    assert lines[2] == "280 rows measured, 0 without visible keys, 0 not finite"
    start = lines.index("heads at 40") + 2
    assert lines[start + 2] == "and 2 more"
    table = diagnosis.summary(limit=None).splitlines()
    start = table.index("heads at 40") + 2
    cells = [line.split() for line in table[start : start + 4]]
    order = [(VERDICTS.index(row[3]), -float(row[4])) for row in cells]
    assert order == sorted(order)
    assert "more" not in table[-1]


def test_one_row_per_head_and_length_for_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    diagnosis = made()
    rows = diagnosis.to_pandas()
    assert len(rows) == 2 * 4 * 3
    first, record = rows[0], diagnosis.records[0]
    assert record.entropy is not None
    assert first["entropy_q90"] == record.entropy.q90
    assert (first["layer"], first["head"], first["length"]) == (0, 0, 10)
    assert first["verdict"] == "local"
    assert all(not isinstance(value, tuple | dict) for row in rows for value in row.values())


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"sharpmax\[pandas\]"):
        made().to_pandas()


def test_worst_first_and_records_by_head() -> None:
    diagnosis = made()
    order = [(VERDICTS.index(h.verdict), -(h.slope or 0.0)) for h in diagnosis.worst() if h.verdict]
    assert order == sorted(order)
    assert set(diagnosis.worst()) == set(diagnosis.heads)
    head = diagnosis.heads[3]
    assert diagnosis.record(head) == diagnosis.record(head, 40)
    assert diagnosis.record(head, 10).length == 10
    with pytest.raises(LookupError, match="layer 0, head 3: not measured at 11"):
        diagnosis.record(head, 11)


def test_the_name_has_no_folders() -> None:
    assert made().name == "gemma2"
    assert replace(made(), model_name="somewhere/models/small").name == "small"
    assert replace(made(), model_name="someone/model").name == "model"


def test_pictures_and_a_page(tmp_path: Path) -> None:
    diagnosis = made()
    for draw in (diagnosis.plot_entropy, diagnosis.plot_slopes, diagnosis.plot_critical_lengths):
        draw().savefig(tmp_path / "figure.png")
    assert diagnosis.to_html(tmp_path / "new" / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    "method", ["plot_entropy", "plot_slopes", "plot_critical_lengths", "to_html"]
)
def test_without_matplotlib_the_extra_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = [tmp_path / "page.html"] if method == "to_html" else []
    with pytest.raises(MissingExtraError, match=r"sharpmax\[report\]"):
        getattr(made(), method)(*arguments)
    assert not list(tmp_path.iterdir())
