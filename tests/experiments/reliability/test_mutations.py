from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.reliability import mutations
from experiments.reliability.__main__ import app
from experiments.reliability.bugs import BUGS, Bug
from experiments.reliability.mutations import NotPlantedError, planted
from experiments.reliability.tables import mutations_table, pages
from sharpmax._files import write_sealed


def test_a_bug_is_planted_once_and_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "sum.py"
    file.write_text("a + b\n", encoding="utf-8")
    with planted(tmp_path, "sum.py", "a + b", "a - b"):
        assert file.read_text(encoding="utf-8") == "a - b\n"
    assert file.read_text(encoding="utf-8") == "a + b\n"
    with (
        pytest.raises(NotPlantedError, match="once, found it 0 times"),
        planted(tmp_path, "sum.py", "a * b", ""),
    ):
        pass


@pytest.mark.parametrize(("after", "by"), [("b + a", ""), ("a - b", "test_sum.py::test_sum")])
def test_the_test_that_fails_is_named(tmp_path: Path, after: str, by: str) -> None:
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    test = "from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    (tmp_path / "test_sum.py").write_text(test, encoding="utf-8")
    bug = Bug("a sign", "mathematics", "sums.py", "a + b", after, ("test_sum.py",))
    assert mutations._plant(tmp_path, bug) == by


def test_bugs_have_names_of_their_own_and_tests_that_exist() -> None:
    root = Path(__file__).parents[3]
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
    assert all((root / test).exists() for bug in BUGS for test in bug.tests)


def test_first_and_last_attempts_are_counted(tmp_path: Path) -> None:
    survived, caught = {"caught": False, "by": ""}, {"caught": True, "by": "a::test"}
    found = {BUGS[0].name: [survived, caught], BUGS[1].name: [caught]}
    write_sealed(tmp_path / "mutations.json", mutations.KIND, {"attempts": found})
    assert mutations_table(tmp_path).rows[0] == ["mathematics", "2", "1", "2"]
    assert (
        f"| {BUGS[0].name} | `{BUGS[0].file}` | survived | caught | `a::test` |"
        in pages(tmp_path)["mutations.md"]
    )


@pytest.mark.usefixtures("holder")
def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["mutations", "--output", str(tmp_path / "held")])
    assert result.exit_code == 1
    assert "another run is writing to this folder" in str(result.exception)
