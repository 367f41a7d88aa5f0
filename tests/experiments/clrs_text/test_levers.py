from __future__ import annotations

from pathlib import Path

import pytest

from experiments.clrs_text import levers
from experiments.clrs_text.__main__ import APPLICATION
from experiments.clrs_text.levers import LEVERS, levers_table
from experiments.common.command import main
from experiments.common.documents import EXPERIMENTS
from sharpmax._files import read_sealed

_FEW = ("the recipe", "no near ties", "two heads of 64")


def _run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(APPLICATION, ["levers", *arguments])
    return exit_.value.code


def test_each_lever_is_a_training_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(levers, "LEVERS", {name: LEVERS[name] for name in _FEW})
    options = ["--quick", "--largest", "5", "--output", str(tmp_path)]
    assert _run(*options) == 0
    files = sorted(tmp_path.glob("*.json"))
    found = [read_sealed(path, levers._KIND) for path in files]
    assert [each["name"] for each in found] == list(_FEW)
    assert [each["settings"]["recipe"]["ties"] for each in found] == [0.3, 0.0, 0.3]
    assert all(each["milliseconds"] > 0 for each in found)
    table = levers_table(tmp_path).to_markdown(200)
    assert table.count("\n| ") == 3
    assert "2 batches; quicksort 4 to 5; minimum 4 to 5." in table

    assert _run(*options) == 1
    assert "holds an earlier run" in capsys.readouterr().err
    before = [path.read_bytes() for path in files]
    monkeypatch.setattr(levers, "train", lambda *_, **__: pytest.fail("trained again"))
    assert _run(*options, "--resume") == 0
    assert [path.read_bytes() for path in files] == before
    monkeypatch.undo()
    part = tmp_path / "part"
    assert _run("--quick", "--largest", "5", "--only", "8", "--output", str(part)) == 0
    assert [path.name for path in part.glob("*.json")] == ["08.json"]
    assert _run("--algorithms", "bfs", "--output", str(tmp_path / "none")) == 2
    assert "got 'bfs'" in capsys.readouterr().err


def test_every_lever_changes_the_recipe() -> None:
    recipe = levers.learnt_recipe({"minimum": (4, 16)})
    for name, change in LEVERS.items():
        assert (levers.replace(recipe, **change) != recipe) == bool(change), name


def test_what_is_published_is_of_the_recipe_as_it_is() -> None:
    path = EXPERIMENTS / "clrs_text" / "results" / "levers" / "00.json"
    recipe = levers.replace(levers.learnt_recipe({"quicksort": (4, 16)}), steps=4000)
    assert read_sealed(path, levers._KIND)["settings"]["recipe"] == recipe.to_dict()
