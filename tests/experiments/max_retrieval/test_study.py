from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.max_retrieval.arms import AS_TRAINED, Arm, Checkpoint, all_arms
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.records import Record, Table
from experiments.max_retrieval.study import Settings, Study
from sharpmax._files import DamagedFileError, SettingsChangedError

_SETTINGS = Settings((0, 5), 8, (16, 32), (24, 16), far=(64,), far_sets=(4,))
_PLAIN = Arm(
    "plain",
    Recipe(steps=8, batch=8, width=16),
    (
        Checkpoint(4, "plain-4", {"training": ("softmax", "paper")}),
        Checkpoint(8, "plain-8", {"inference": None, "beyond": ("exponential",)}, True, True),
    ),
)
_SSMAX = Arm(
    "ssmax",
    Recipe("ssmax", steps=4, batch=8, width=16),
    (Checkpoint(4, "with-ssmax", {"trained": (AS_TRAINED,)}),),
    largest=16,
)


def test_arms_are_added_to_the_table_and_what_is_there_stays(tmp_path: Path) -> None:
    study = Study(tmp_path, _SETTINGS, "a command")
    study.run(_PLAIN)
    first = study.table
    assert Table.load(study.table_path) == first
    again = Study(tmp_path, _SETTINGS, "a command", resume=True)
    # Without its weights an arm could not be trained in no time: it is not trained again.
    (tmp_path / "weights" / "plain" / "checkpoint.safetensors").unlink()
    again.run(_PLAIN, on_training=lambda _: pytest.fail("trained again"))
    again.run(_SSMAX)
    table = Table.load(again.table_path)
    assert table.records[: len(first.records)] == first.records
    assert table.sizes() == [16, 32, 64]
    assert list(table.recipes) == ["plain-4", "plain-8", "with-ssmax"]
    assert table.recipes["plain-4"]["tested_after"] == 4

    record = table.find(method="ssmax", weights="last", n=16)
    assert (record.trained_with, record.group, record.sets) == ("ssmax", "trained", 24)
    assert len(record.accuracy) == 2
    assert not list(table.select(method="ssmax", n=32)), "beyond its largest size"
    assert {record.n for record in table.select(recipe="plain-4")} == {16, 32}
    far = table.find(method="exponential", recipe="plain-8", weights="averaged", n=64,
                     group="beyond")  # fmt: skip
    assert far.sets == 4
    oracle = table.find(method="oracle", weights="last", n=32)
    for other in table.select(group="inference", weights="last", n=32):
        assert all(a >= b for a, b in zip(oracle.accuracy, other.accuracy, strict=True)) or (
            other.method not in ("softmax", "fixed-2", "fixed-64")
        )


def test_a_run_is_not_overwritten_and_goes_on_only_with_its_settings(tmp_path: Path) -> None:
    Study(tmp_path, _SETTINGS, "a command").run(_SSMAX)
    with pytest.raises(FileExistsError, match="holds an earlier run"):
        Study(tmp_path, _SETTINGS, "a command")
    other = Settings((0, 5), 8, (16, 32), (24, 17))
    with pytest.raises(SettingsChangedError, match=r"has sets \[24, 16\], not \[24, 17\]"):
        Study(tmp_path, other, "a command", resume=True)
    changed = Arm("ssmax", Recipe("ssmax", steps=4, batch=9, width=16), _SSMAX.checkpoints, 16)
    with pytest.raises(SettingsChangedError, match="has batch 8, not 9"):
        Study(tmp_path, _SETTINGS, "a command", resume=True).run(changed)


def test_an_edited_table_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, _SETTINGS, "a command")
    study.run(_SSMAX)
    data = json.loads(study.table_path.read_text(encoding="utf-8"))
    data["records"][0]["accuracy"][0] = 1.0
    study.table_path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DamagedFileError, match="changed after it was written"):
        Study(tmp_path, _SETTINGS, "a command", resume=True)


def test_every_arm_has_a_name_and_recipes_of_its_own() -> None:
    arms = all_arms(40_000)
    names = [arm.name for arm in arms]
    recipes = [each.recipe for arm in arms for each in arm.checkpoints]
    assert len(set(names)) == len(names)
    assert len(set(recipes)) == len(recipes)
    assert {"standard-20k", "standard-40k", "standard-100k", "cosine+20k-steps"} <= set(recipes)
    for arm in arms:
        assert max(each.step for each in arm.checkpoints) == arm.recipe.steps
        assert arm.recipe.largest == 16, "no recipe sees more items"


def test_figures_of_a_record() -> None:
    def record(method: str, *accuracy: float) -> Record:
        return Record(method, "last", "softmax", "plain", "inference", 16, 100, accuracy)

    ours, theirs = record("exponential", 0.8, 0.9, 0.7), record("softmax", 0.5, 0.7, 0.5)
    table = Table("a command", (0, 1, 2), {}, (ours, theirs))
    assert ours.mean == pytest.approx(0.8)
    assert ours.deviation == pytest.approx(0.1)
    assert ours.interval[0] < 0.8 < ours.interval[1]
    assert record("softmax", 0.5).deviation == 0.0
    p_values = table.extras(ours)
    assert 0 < p_values["p_value_against_softmax"] < 0.05
    assert p_values["p_value_against_paper"] is None
    assert table.extras(theirs) == {}
    with pytest.raises(LookupError, match="found 0"):
        table.find(method="paper")


def test_heads_are_dissected_and_shown(tmp_path: Path) -> None:
    study = Study(tmp_path, _SETTINGS, "a command")
    for arm in (_PLAIN, _SSMAX):
        study.run(arm)
        found = study.dissect(arm)
    assert list(found["recipes"]) == ["plain-4", "plain-8"], "softmax alone"
    entry = found["recipes"]["plain-8"]["averaged"]
    assert len(entry["slope"]) == len(entry["deviation"]) == len(entry["predicted"]["32"]) == 2
    assert study.dissect(_PLAIN) == found, "what is there stays"

    figures = study.measure_figures(_PLAIN)
    assert figures["attention"]["sizes"] == [16, 32]
    assert figures["seeds"] == [0]
    assert study.measure_figures(_PLAIN)["fit"] == figures["fit"]


def test_a_thin_arm_leaves_out_sizes_between_others() -> None:
    thin = Arm("thin", Recipe(), (), thin=True)
    assert thin.sizes([16, 32, 64, 128, 256, 512]) == [16, 64, 256, 512]
    assert thin.sizes([16, 100, 1024, 2048]) == [16, 100, 1024, 2048], "no halves and doubles"
    assert Arm("all", Recipe(), (), largest=64).sizes([16, 32, 64, 128]) == [16, 32, 64]
