from __future__ import annotations

import re
from dataclasses import replace

import pytest

from calibrations import CALIBRATIONS, SHARES, make_calibration, make_evaluation
from sharpmax.models._evaluation.cells import Cell
from sharpmax.models._evaluation.verdict import judge
from sharpmax.report.calibration.tables import (
    change,
    changes_table,
    heads_table,
    largest_rise,
    means_table,
    summary_table,
)

MINUS = "\N{MINUS SIGN}"
EVALUATION = make_evaluation(rises={"paper in all heads": 1.3})


def test_every_arm_on_every_cell_with_the_best_in_bold() -> None:
    table = means_table(EVALUATION)
    assert table.header == ["task", "arm", "1,024", "2,048", "4,096"]
    assert len(table.rows) == 6 * len(SHARES)
    assert [row[0] for row in table.rows[:: len(SHARES)]] == [
        "passkey", "passkey, unseen wording", "key-value", "key-value, unseen wording", "maximum",
        "text",
    ]  # fmt: skip
    assert table.rows[1][1] == "constant"
    assert re.fullmatch(r"\*\*80\.0\*\* \[\d\d\.\d, \d\d\.\d\]", table.rows[1][2])
    assert table.rows[0][2].startswith("50.0 [")
    # A lower loss is better.
    of_text = {row[1]: row[2] for row in table.rows[-len(SHARES) :]}
    assert of_text["plain"].startswith("**")
    assert "**" not in of_text["paper in all heads"]
    assert "`sharpmax calibrate abacus`" in table.caption
    assert r"Abacus \<small\>, float32, on other book.txt; " in table.caption


def test_many_commands_are_counted() -> None:
    several = replace(EVALUATION, command="sharpmax evaluate a\nsharpmax evaluate b --resume")
    assert "Produced by the 2 commands listed in evaluation.json." in means_table(several).caption


def test_missing_cells_are_empty() -> None:
    cells = [Cell("passkey", 1024), Cell("maximum", 2048)]
    table = means_table(make_evaluation({"plain": 0.5, "gain": 0.5}, cells))
    assert [row[3] for row in table.rows[:2]] == ["", ""]
    assert [row[2] for row in table.rows[2:]] == ["", ""]
    assert not any("**" in cell for row in table.rows for cell in row), "none is better"


def test_significant_changes_are_bold() -> None:
    table = changes_table(EVALUATION)
    rows = {row[1]: row for row in table.rows[: len(SHARES) - 1]}
    assert "plain" not in rows
    assert rows["constant"][2].startswith("**+30.0 [+")
    assert rows["paper in all heads"][2].startswith(f"**{MINUS}45.0 [")
    same = changes_table(make_evaluation({"plain": 0.5, "gain": 0.5}, [Cell("passkey", 1024)]))
    assert same.rows == [["passkey", "gain", "+0.0 [+0.0, +0.0]"]]
    without = make_evaluation({"gain": 0.5}, [Cell("passkey", 1024)])
    assert changes_table(without).rows == []


def test_summary_of_all_arms() -> None:
    verdict = judge(EVALUATION, CALIBRATIONS)
    table = summary_table(EVALUATION, CALIBRATIONS, verdict)
    assert "vs constant" in table.header
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == [f"**{arm}**" if arm == "constant" else arm for arm in SHARES]
    assert rows["plain"] == ["", "2,400", "46.0", "", "", "", "", ""]
    heads, questions, right, against_plain, unseen, against, surprise, rise = rows["gain"]
    assert (heads, questions, right) == ("2", "2,400", "51.2")
    assert against_plain.startswith("+5.2 [")
    assert unseen.startswith("+5.2 [")
    assert against.startswith(f"{MINUS}25.0 [")
    assert surprise.startswith(f"{MINUS}{0.0517 * 1.9:.3f} [")
    assert rise.startswith("+0.004 [")
    assert rows["**constant**"][5] == ""
    assert rows["paper in all heads"][7].startswith("+1.300")
    assert "passkey and key-value, 2,400 in 25 contexts. Accuracy is over the" in table.caption


def test_only_the_plain_model_on_text() -> None:
    evaluation = make_evaluation({"plain": 0.5}, [Cell("text", 64)])
    table = summary_table(evaluation, {}, judge(evaluation, {}))
    assert table.rows == [["plain", *[""] * 8]]


def test_only_columns_with_values_are_shown() -> None:
    assert heads_table(CALIBRATIONS["constant"]).header == ["layer", "head", "beta"]
    assert heads_table(CALIBRATIONS["gain"]).header == ["layer", "head", "gain"]
    both = heads_table(CALIBRATIONS["constant+gain"])
    assert both.header == ["layer", "head", "beta", "gain"]
    assert both.rows == [
        ["0", "1", "1.400", "1.100"], ["1", "2", "1.300", "1.000"], ["2", "2", "", "0.800"],
    ]  # fmt: skip
    assert heads_table(make_calibration("gain", certain=None)).rows == []


def test_the_largest_rise() -> None:
    found = largest_rise(EVALUATION, "paper in all heads")
    assert found is not None
    length, rise, (low, high) = found
    assert length in (1024, 2048, 4096)
    assert low < rise < high
    assert rise == pytest.approx(1.3, abs=0.01)
    assert largest_rise(EVALUATION, None) is None


def test_signs() -> None:
    assert change(-0.5, (-0.51, 0.002), of_text=False) == f"{MINUS}50.0 [{MINUS}51.0, +0.2]"
    assert change(0.0123, (-0.001, 0.02), of_text=True) == f"+0.012 [{MINUS}0.001, +0.020]"
