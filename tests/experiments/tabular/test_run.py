"""A quick run goes through every verb: a small random model on tables of scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.common.command import main
from experiments.tabular import arms, run
from experiments.tabular.__main__ import app
from experiments.tabular.arms import REMEDIES
from experiments.tabular.design import OTHER_ROWS, QUICK
from experiments.tabular.records import Cell, Results


def _call(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    return exit_.value.code


def test_a_quick_run_resumes_and_ends_with_its_table_and_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ["--output", str(tmp_path)]
    assert _call("run", "--quick", "--minutes", "0", *folder) == 0
    assert "Stopped; continue with --resume" in capsys.readouterr().out
    path = tmp_path / "tabular.json"
    assert not Results.load(path).records

    part = ["--arms", "plain", "--rows", "1024,1200", "--splits", "1"]
    assert _call("run", "--quick", "--resume", "--splits", "2", *folder) == 0
    assert not Results.load(path).records
    assert _call("run", "--quick", "--resume", *part, *folder) == 0
    first = Results.load(path).records
    assert {(cell.arm, cell.size) for cell in first} == {("plain", 1_024), ("plain", 1_200)}
    capsys.readouterr()

    assert _call("run", "--quick", "--resume", *folder) == 0
    results = Results.load(path)
    named = {cell.arm for cell in results.records if cell.size == QUICK.report_size}
    assert named == {
        "plain",
        "log-length",
        "exponential-0.125",
        "matched",
        "matched-heads",
        "fitted",
        *REMEDIES,
        *OTHER_ROWS,
    }
    assert {cell.arm for cell in results.records if cell.size == QUICK.choose_size} == {
        "plain", "fitted", *QUICK.candidates, *QUICK.also_chosen
    }  # fmt: skip
    beta = {
        arm: results.records[Cell("cancer", 1, QUICK.report_size, arm)].beta
        for arm in ("exponential-0.125", "matched", "matched-heads")
    }
    assert beta["exponential-0.125"] > 1.0
    assert beta["matched"] == beta["matched-heads"] == pytest.approx(beta["exponential-0.125"])
    beyond = {cell.arm: record for cell, record in results.records.items() if cell.size == 1_500}
    assert {"plain", "log-length", "exponential-0.125", "boosting"} <= beyond.keys()
    assert beyond["exponential-0.125"].beta is None
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert "Tables held back, contexts of 1,400 rows. 1 split." in capsys.readouterr().out

    # Nothing is left to predict, and a run that is there is not overwritten.
    monkeypatch.setattr(run, "_predict", lambda *_: pytest.fail("predicted again"))
    assert _call("run", "--quick", "--resume", *folder) == 0
    assert _call("run", "--quick", *folder) == 1
    assert "earlier run" in capsys.readouterr().err
    assert _call("tables", *folder) == 0
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "| log-length |" in text
    assert "| cancer | target | report |" in text


def test_large_contexts_take_the_kernel_for_the_same_predictions() -> None:
    model, tables, load = run._quick()
    x, y = load(tables[1].name)
    given = arms.Given(x[:1_100], y[:1_100], x[1_100:1_200], 2)
    plain, entropies = arms.entropies(model, given)
    np.testing.assert_allclose(arms.sharpened(model, arms.PLAIN, given).logits, plain, atol=1e-4)
    watched, fused = (
        arms.sharpened(
            model, arms.policies_of("exponential-0.25", entropies - 0.5, watch=watch), given
        )
        for watch in (True, False)
    )
    assert watched.beta is not None
    assert watched.beta.min() > 1.05
    assert fused.beta is None
    np.testing.assert_allclose(fused.logits, watched.logits, atol=1e-4)


def test_a_run_is_not_resumed_with_another_design(tmp_path: Path) -> None:
    model, tables, _ = run._quick()
    settings = QUICK.to_dict()
    Results(tmp_path / "tabular.json", "a command", tables, settings).save()
    again = Results.load(tmp_path / "tabular.json")
    again.check(tables, settings)
    with pytest.raises(ValueError, match="report_size"):
        again.check(tables, settings | {"report_size": 9})
    with pytest.raises(ValueError, match="tables"):
        again.check(tables[:1], settings)
    data = json.loads((tmp_path / "tabular.json").read_text(encoding="utf-8"))
    assert data["columns"][:4] == ["table", "split", "size", "arm"]
    assert model.config.layers == 2
