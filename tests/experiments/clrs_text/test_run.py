from __future__ import annotations

from pathlib import Path

import pytest
import transformers as hf

from experiments.clrs_text.records import Table
from experiments.clrs_text.run import chosen_lengths
from sharpmax.cli import main
from tiny_models import SETTINGS, save

_TINY = ["--algorithms", "minimum:5", "--steps", "1", "--seeds", "1", "--each", "2"]


def _run(*arguments: str, command: str = "clrs-text") -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["reproduce", command, *arguments])
    return exit_.value.code


def test_every_arm_runs_quickly_and_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--output", str(tmp_path)]
    assert _run(*options) == 0
    said = capsys.readouterr().out
    assert "tokens/s" in said
    assert "testing exponential" in said
    assert f"Table: {tmp_path / 'table.json'}" in said

    assert _run(*options) == 1
    assert "holds an earlier run" in capsys.readouterr().err
    assert (
        _run(*options, "--tokenizer", "characters", "--attention", "exponential", "--resume") == 0
    )
    table = Table.load(tmp_path / "table.json")
    assert list(table.recipes) == [
        "numbers-softmax",
        "numbers-paper",
        "numbers-ssmax",
        "characters-softmax",
    ]
    assert table.command == (
        "sharpmax reproduce clrs-text --quick && sharpmax reproduce clrs-text --quick "
        "--tokenizer characters --attention exponential --resume"
    )
    capsys.readouterr()

    assert _run("--results", str(tmp_path), command="clrs-text-figures") == 0
    said = capsys.readouterr().out
    for name in ("tables.md", "accuracy-numbers.svg", "entropy-characters-softmax.svg"):
        assert name in said
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_pretrained_model_is_fine_tuned(rank: str, tmp_path: Path) -> None:
    if rank != "0":
        pytest.importorskip("peft")
    folder = save(hf.GemmaForCausalLM(hf.GemmaConfig(**SETTINGS, head_dim=8)), tmp_path / "gemma")
    output = tmp_path / "run"
    options = ["--model", str(folder), "--rank", rank, "--attention", "ssmax"]
    assert _run(*_TINY, *options, "--output", str(output)) == 0
    table = Table.load(output / "table.json")
    assert list(table.recipes) == ["own-tokens-softmax", "own-tokens-ssmax"]
    assert {record.tokenizer for record in table.records} == {"own tokens"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algorithms", "bogosort"], "got 'bogosort'"),
        (["--algorithms", "minimum:3"], "expected a largest size from 4 for minimum, got '3'"),
        (["--attention", "hard"], "expected 'all', or some of softmax, paper"),
        (["--tokenizer", "words"], "tokenizer: expected one of numbers, characters"),
        (["--steps", "2", "--minutes", "1"], "expected one of --minutes and --steps"),
        (["--model", "no/such/folder", "--steps", "1"], "no/such/folder: there is no such folder"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*arguments, "--output", str(tmp_path / "none")) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_a_time_sets_the_steps(tmp_path: Path) -> None:
    options = ["--algorithms", "minimum:5", "--minutes", "0.01", "--seeds", "1", "--each", "1"]
    options += ["--attention", "exponential", "--output", str(tmp_path)]
    assert _run(*options) == 0
    table = Table.load(tmp_path / "table.json")
    assert table.recipes["numbers-softmax"]["steps"] >= 1
    assert table.command.startswith("sharpmax reproduce clrs-text --algorithms minimum:5 --minutes")


def test_groups_of_algorithms_are_all_of_them() -> None:
    some, others, every = (chosen_lengths(name, None) for name in ("some", "others", "all"))
    assert (len(some), len(others), len(every)) == (8, 22, 30)
    assert {**some, **others} == every
