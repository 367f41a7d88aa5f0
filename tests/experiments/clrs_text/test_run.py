from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers as hf

from experiments.clrs_text.__main__ import APPLICATION
from experiments.clrs_text.interventions import INTERVENTIONS, KINDS
from experiments.clrs_text.measurements import LOSS
from experiments.clrs_text.records import Table
from experiments.clrs_text.run import lengths_of
from experiments.common.command import main
from sharpmax._files import read_sealed
from tiny_models import SETTINGS, save

_TINY = ["--algorithms", "minimum:5", "--seeds", "1", "--each", "2"]


def _run(*arguments: str, verb: str = "run") -> object:
    with pytest.raises(SystemExit) as exit_:
        main(APPLICATION, [verb, *arguments])
    return exit_.value.code


def test_a_quick_run_ends_with_tables_and_figures_of_what_it_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--output", str(tmp_path)]
    assert _run(*options) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed
    assert "testing exponential" in printed
    assert "All sizes, tokenizer: numbers" in printed
    assert re.search(r"SSMax,\s+trained", printed)
    for name in ("table.json", "tables.md", "accuracy-numbers.svg", "entropy-numbers-softmax.svg"):
        assert f"Written: {tmp_path / name}" in printed
        assert (tmp_path / name).exists()
    assert "| quicksort | 4 to 6 |" in (tmp_path / "tables.md").read_text(encoding="utf-8")

    assert _run(*options) == 1
    assert "holds an earlier run" in capsys.readouterr().err
    more = ["--tokenizer", "characters", "--attention", "exponential", "--resume"]
    assert _run(*options, *more) == 0
    table = Table.load(tmp_path / "table.json")
    assert list(table.recipes) == [
        "numbers-softmax",
        "numbers-paper",
        "numbers-ssmax",
        "numbers-tuned-softmax",
        "numbers-tuned-paper",
        "numbers-tuned-exponential",
        "characters-softmax",
    ]
    run = "python -m experiments.clrs_text run"
    assert table.command == (
        f"{run} --quick && {run} --tokenizer characters --attention exponential --quick --resume"
    )
    assert (tmp_path / "accuracy-characters.svg").exists()
    capsys.readouterr()

    for verb, name in (("tables", "tables.md"), ("figures", "entropy-characters-softmax.svg")):
        (tmp_path / name).unlink()
        assert _run("--output", str(tmp_path), verb=verb) == 0
        assert f"Written: {tmp_path / name}" in capsys.readouterr().out
        assert (tmp_path / name).exists()


def test_learnt_models_are_intervened_in(tmp_path: Path) -> None:
    assert _run("--learnt", "--quick", "--attention", "by-row", "--output", str(tmp_path)) == 0
    table = Table.load(tmp_path / "table.json")
    assert {record.n for record in table.records} == {4, 5, 6, 9, 12, 18, 24, 48, 96}
    assert {record.method for record in table.records} == {"softmax", "by-row"}
    assert table.recipes["numbers-softmax"]["positions"] == "shifted"
    found = read_sealed(tmp_path / "interventions.json", INTERVENTIONS)
    for by_algorithm in found["seeds"].values():
        assert by_algorithm.keys() == {"minimum", "quicksort"}
        for kind in KINDS:
            sizes = by_algorithm["quicksort"][kind]["sizes"]
            assert len(sizes) == 6
            assert all(len(each["single"]) == 2 for each in sizes.values())


@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_pretrained_model_is_fine_tuned(rank: str, tmp_path: Path) -> None:
    if rank != "0":
        pytest.importorskip("peft")
    config = hf.Gemma3TextConfig(
        **SETTINGS,
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    )
    folder = save(hf.Gemma3ForCausalLM(config), tmp_path / "gemma")
    output = tmp_path / "run"
    options = ["--model", str(folder), "--rank", rank, "--attention", "paper", "--steps", "2"]
    assert _run(*_TINY, *options, "--output", str(output)) == 0
    table = Table.load(output / "table.json")
    assert list(table.recipes) == ["own-tokens-softmax", "own-tokens-paper"]
    assert {record.tokenizer for record in table.records} == {"own tokens"}
    curves = read_sealed(output / "loss.json", LOSS)["arms"]
    assert curves.keys() == table.recipes.keys()
    assert all(each["steps"] == [1, 2] for each in curves.values())
    (softmax,), (paper,) = (each["loss"] for each in curves.values())
    assert softmax[0] != paper[0], "the rule is active in training"
    assert (output / "loss.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algorithms", "bogosort"], "got 'bogosort'"),
        (
            ["--algorithms", "minimum:3"],
            "expected a largest size of at least 4 for minimum, got '3'",
        ),
        (["--attention", "hard"], "attention: expected some of softmax, paper"),
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
    assert table.command.startswith("python -m experiments.clrs_text run --algorithms minimum:5")
    assert " --minutes 0.01 --seeds 1 --each 1" in table.command


def test_groups_of_algorithms_are_all_of_them() -> None:
    some, others, every = (lengths_of(name, None) for name in ("some", "others", "all"))
    assert (len(some), len(others), len(every)) == (8, 22, 30)
    assert {**some, **others} == every
