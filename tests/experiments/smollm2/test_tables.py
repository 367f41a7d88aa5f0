from __future__ import annotations

from calibrations import make_calibration, make_evaluation
from diagnoses import make_diagnosis
from experiments.smollm2.tables import dispersing_table, headline_table
from sharpmax.models._evaluation.cells import Cell


def test_headline_table() -> None:
    cells = [Cell("key-value", 2048), Cell("passkey", 1024), Cell("text", 1024)]
    cells += [Cell("passkey", 1024, "unseen")]
    table = headline_table(make_evaluation({"plain": 0.5, "gain": 0.75}, cells), ("plain", "gain"))
    assert table.header == ["task", "tokens", "plain", "gain"]
    assert table.rows[:2] == [
        ["passkey, % correct", "1,024", "50.0", "75.0"],
        ["key-value, % correct", "2,048", "46.0", "71.0"],
    ]
    assert table.rows[2][:2] == ["text loss, nats per token", "1,024"]
    assert len(table.rows) == 3
    assert not headline_table(make_evaluation(), ("plain", "no such arm")).rows


def test_dispersing_table() -> None:
    diagnosis = make_diagnosis([["dispersing", "flat", "flat", "sink"]] * 3)
    contributions = [[0.1 * head - layer for layer in range(3) for head in range(4)]]
    calibration = make_calibration("constant", {(1, 0): 1.5, (2, 0): 0.5, (2, 2): 1.2})
    calibration.notes["select"]["contributions"] = contributions
    table = dispersing_table(calibration, diagnosis, most=2)
    assert table.header[-1] == "among the 2 most helpful"
    assert table.rows == [
        ["dispersing", "3", "2", "1", "1", "1"],
        ["flat", "6", "1", "1", "0", "1"],
        ["sink", "3", "0", "0", "0", "0"],
    ]
