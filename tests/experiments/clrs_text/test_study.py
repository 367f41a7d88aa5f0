from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.clrs_text.parallel import run_in_parallel
from experiments.clrs_text.recipe import arms_of, small_recipe
from experiments.clrs_text.records import Table, load_entropy
from experiments.clrs_text.settings import Settings
from experiments.clrs_text.study import Study, steps_within
from experiments.clrs_text.task import shared_inputs
from sharpmax._files import DamagedFileError, SettingsChangedError

_LENGTHS = {"minimum": (4, 6)}
_SETTINGS = Settings((0, 3), _LENGTHS, each=3)
_RECIPE = replace(small_recipe(_LENGTHS, quick=True), steps=2)


def test_sizes_are_some_of_training_and_multiples() -> None:
    settings = Settings((0,), {"minimum": (4, 16), "bfs": (4, 5)})
    assert settings.sizes("minimum") == [4, 8, 12, 16, 24, 32, 48, 64]
    assert settings.sizes("bfs") == [4, 5, 8, 10, 15, 20]


def test_arms_are_added_to_the_table_and_what_is_there_stays(tmp_path: Path) -> None:
    softmax, ssmax = arms_of(_RECIPE, ["paper", "ssmax"])[::2]
    study = Study(tmp_path, _SETTINGS, "a command")
    study.run(softmax)
    first = study.table
    assert Table.load(study.table_path) == first
    assert {(record.method, record.trained_with) for record in first.records} == {
        ("softmax", "softmax"),
        ("paper", "softmax"),
    }
    again = Study(tmp_path, _SETTINGS, "a command", resume=True)
    again.run(softmax, on_training=lambda *_: pytest.fail("trained again"))
    again.run(ssmax)
    table = Table.load(again.table_path)
    assert table.records[: len(first.records)] == first.records
    assert list(table.recipes) == ["numbers-softmax", "numbers-ssmax"]
    record = table.find(method="ssmax", n=24)
    assert (record.tokenizer, record.algorithm, record.examples) == ("numbers", "minimum", 3)
    assert len(record.accuracy) == 2
    assert not table.is_seen(record)
    assert table.is_seen(table.find(method="ssmax", n=6))
    assert all("0 shared with training" in said for said in table.settings["test"].values())

    # Methods that were not asked for before are tested on the weights that are there.
    (more,) = arms_of(_RECIPE, ["exponential"])
    again.run(more, on_training=lambda *_: pytest.fail("trained again"))
    assert len(list(Table.load(again.table_path).select(method="exponential"))) == 6

    with pytest.raises(FileExistsError, match="holds an earlier run"):
        Study(tmp_path, _SETTINGS, "a command")
    with pytest.raises(SettingsChangedError, match="has each 3, not 4"):
        Study(tmp_path, replace(_SETTINGS, each=4), "a command", resume=True)
    with pytest.raises(SettingsChangedError, match="has steps 2, not 3"):
        again.run(replace(softmax, recipe=replace(_RECIPE, steps=3)))
    data = json.loads(study.table_path.read_text(encoding="utf-8"))
    data["records"][0]["accuracy"][0] = 1.0
    study.table_path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DamagedFileError, match="changed after it was written"):
        Study(tmp_path, _SETTINGS, "a command", resume=True)


def test_cells_suffice_without_weights_and_seeds_are_added(tmp_path: Path) -> None:
    arms = arms_of(_RECIPE, ["ssmax", "tuned-paper"])
    one = replace(_SETTINGS, seeds=(0,), each=2, inside=2, times=(1.5,))
    study = Study(tmp_path, one, "a command", interventions=True)
    run_in_parallel(study, arms, 1)
    study.measure_interventions(arms[0])
    first, found = study.table, (tmp_path / "interventions.json").read_bytes()
    for name in ("weights", "examples"):
        shutil.rmtree(tmp_path / name)

    with pytest.raises(FileExistsError, match="holds an earlier run"):
        Study(tmp_path, one, "a command")
    again = Study(tmp_path, one, "a command", resume=True, interventions=True)
    again.table_path.unlink()
    again = Study(tmp_path, one, "a command", resume=True, interventions=True)
    run_in_parallel(again, arms, 1, on_training=lambda *_: pytest.fail("trained again"))
    again.measure_interventions(arms[0])
    again.measure_entropy(arms[0])
    assert again.table.records == first.records
    assert (tmp_path / "interventions.json").read_bytes() == found

    two = replace(one, seeds=(0, 3))
    more = Study(tmp_path, two, "another", resume=True, interventions=True)
    order: list[tuple[str, int]] = []
    run_in_parallel(more, arms, 1, lambda arm, seed, _: order.append((arm.name, seed)))
    assert list(dict.fromkeys(order)) == [
        ("numbers-softmax", 3),
        ("numbers-tuned-paper", 3),
        ("numbers-ssmax", 3),
    ]
    assert more.measure_interventions(arms[0])["seeds"].keys() == {"0", "3"}
    table = Table.load(tmp_path / "table.json")
    assert (table.seeds, table.command) == ((0, 3), "another")
    for record, before in zip(table.records, first.records, strict=True):
        assert record.accuracy[:1] == before.accuracy
    other = [replace(arm, recipe=replace(arm.recipe, ties=0.5)) for arm in arms[:1]]
    (tmp_path / "table.json").unlink()
    with pytest.raises(SettingsChangedError, match="recipe"):
        run_in_parallel(Study(tmp_path, two, "another", resume=True), other, 1)


def test_two_that_run_at_a_time_add_to_one_table(tmp_path: Path) -> None:
    (softmax,), (_, ssmax) = arms_of(_RECIPE, []), arms_of(_RECIPE, ["ssmax"])
    one = Study(tmp_path, _SETTINGS, "a command")
    other = Study(tmp_path, _SETTINGS, "another", resume=True)
    one.run(softmax)
    other.run(ssmax)
    table = Table.load(tmp_path / "table.json")
    assert list(table.recipes) == ["numbers-softmax", "numbers-ssmax"]
    assert table.command == "a command && another --resume"


def test_entropy_of_the_heads_is_measured_and_kept(tmp_path: Path) -> None:
    (arm,) = arms_of(_RECIPE, [])
    study = Study(tmp_path, _SETTINGS, "a command")
    study.run(arm)
    found = study.measure_entropy(arm)
    entry = found["arms"]["numbers-softmax"]
    assert entry["multiples"] == [0.5, 1.0, 1.5, 2, 3, 4]
    assert entry["visible"] == sorted(entry["visible"])
    assert np.shape(entry["mean"]) == np.shape(entry["deviation"]) == (6, 2, 2)
    assert study.measure_entropy(arm) == found == load_entropy(tmp_path / "entropy.json")


def test_tests_share_no_input_with_training(tmp_path: Path) -> None:
    study = Study(tmp_path, _SETTINGS, "a command")
    asked = [one.question for test in study.tests.values() for one in test.examples]
    assert not shared_inputs(study._training_questions(), asked)
    inside, beyond = study.tests.values()
    assert (inside.each, beyond.each) == (4 * _SETTINGS.each, _SETTINGS.each)
    for test, further in ((inside, False), (beyond, True)):
        for one in test.examples:
            assert (one.length > _SETTINGS.lengths[one.algorithm][1]) == further


def test_a_time_becomes_a_number_of_steps_once(tmp_path: Path) -> None:
    assert steps_within(_RECIPE, 1e-9) == 1
    study = Study(tmp_path, _SETTINGS, "a command")
    steps = study.steps(_RECIPE, 0.01)
    assert steps > 1
    assert study.steps(_RECIPE, 0.01) == steps
    with pytest.raises(SettingsChangedError, match=r"has minutes 0\.01, not 0\.02"):
        study.steps(_RECIPE, 0.02)
