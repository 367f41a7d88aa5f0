from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.monitor.__main__ import app
from experiments.monitor.tables import KIND, cost_table, tables
from sharpmax._files import read_sealed

RESULTS = Path(__file__).parents[3] / "experiments/monitor/results"


def test_a_quick_run_ends_with_its_tables_and_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(app, ["run", "--quick", "--output", str(tmp_path)])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    assert "stable, 0.001" in said
    assert "cost, one step in 100" in said
    assert (tmp_path / "monitor.png").exists()
    data = read_sealed(tmp_path / "monitor.json", KIND)
    assert [each["step"] for each in data["trainings"]["stable"]["readings"]] == [*range(0, 40, 5)]
    assert set(tables(tmp_path)) == {"monitor-trainings", "monitor-cost"}


def test_the_published_run_shows_one_collapse_and_a_cost_below_two_percent() -> None:
    data = read_sealed(RESULTS / "monitor.json", KIND)
    kinds = {
        name: {alarm["kind"] for alarm in training["alarms"]}
        for name, training in data["trainings"].items()
    }
    assert {"collapse", "explosion"} <= kinds["collapsing"]
    assert not {"collapse", "explosion"} & kinds["stable"]
    assert all(float(row[-1].rstrip("%")) < 2 for row in cost_table(data).rows)
