from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.clrs_text.parallel import run_in_parallel
from experiments.clrs_text.recipe import arms_of, small_recipe
from experiments.clrs_text.records import Table
from experiments.clrs_text.settings import Settings
from experiments.clrs_text.study import Study

_LENGTHS = {"minimum": (4, 6)}
_SETTINGS = Settings((0, 3), _LENGTHS, each=3)
_RECIPE = replace(small_recipe(_LENGTHS, quick=True), steps=2)


def test_the_table_is_the_same(tmp_path: Path) -> None:
    arms = arms_of(_RECIPE, ["paper", "ssmax"])
    alone = Study(tmp_path / "alone", _SETTINGS, "a command")
    for arm in arms:
        alone.run(arm)
    together = Study(tmp_path / "together", _SETTINGS, "a command")
    reported: dict[tuple[str, int], list[object]] = defaultdict(list)
    run_in_parallel(
        together,
        arms,
        2,
        lambda arm, seed, at: reported[arm.name, seed].append(at.step),
        lambda arm, seed, method: reported[arm.name, seed].append(method),
    )
    assert Table.load(together.table_path).records == alone.table.records
    assert reported == {
        **{("numbers-softmax", seed): [2, "softmax", "paper"] for seed in (0, 3)},
        **{(f"numbers-{name}", seed): [2, name] for name in ("paper", "ssmax") for seed in (0, 3)},
    }


def test_a_failure_in_a_process_is_raised(tmp_path: Path) -> None:
    study = Study(tmp_path, _SETTINGS, "a command")
    arms = arms_of(replace(_RECIPE, learning_rate=float("inf")), ["paper"])
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        run_in_parallel(study, arms, 2)
    assert not study.table.records
