from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharpmax.cli import main
from sharpmax.models import Calibration, Evaluation, load_model
from sharpmax.models._evaluation import evaluate as evaluating
from sharpmax.policies import Constant
from tiny_models import others, save, save_llama

SMALL = [
    "--text", "book.txt", "--tasks", "passkey,text", "--lengths", "120,150", "--questions", "4",
    "--contexts", "2", "--windows", "2", "--output", "out",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(autouse=True)
def _in_a_folder_with_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    book = "".join(f"It was the {place}th of times. " for place in range(40))
    Path("book.txt").write_text(book, encoding="utf-8")
    Path("short.txt").write_text("To be, or not to be?", encoding="utf-8")
    loaded, _ = load_model(model)
    Calibration.of(loaded, {1: Constant([2.0, 1.0, 1.0, 1.1111111111111112])}).save("warm.json")
    Calibration.of(loaded, {}, gains={0: [1.5, 1.0, 1.0, 1.0]}).save("loud.json")
    whole = Path("warm.json").read_text(encoding="utf-8")
    Path("cut.json").write_text(whole[:-30], encoding="utf-8")
    capsys.readouterr()


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["evaluate", *map(str, arguments)])
    return exit_.value.code


def test_plain_calibrated_and_controls(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--calibration", "sharp=warm.json", "--calibration", tmp_path / "loud.json"]
    assert _run(model, *SMALL, *given) == 0
    said = capsys.readouterr().out
    assert "Accuracy and text loss" in said
    assert "No calibration significantly improved" in said
    evaluation = Evaluation.load(Path("out/evaluation.json"))
    assert list(evaluation.arms) == [
        "plain", "sharp", "loud", "paper in all heads", "uniform beta 1.1", "shuffled sharp",
    ]  # fmt: skip
    assert len(evaluation.results) == 6 * 2 * 3
    assert "--calibration sharp=warm.json --calibration loud.json" in evaluation.command
    written = {path.name for path in Path("out").iterdir()}
    assert written == {"evaluation.json", "report.html", "table.md", "accuracy.png"}
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "Calibration of llama" in page
    assert str(tmp_path) not in page


def test_without_controls_or_without_anything(model: Path) -> None:
    assert _run(model, *SMALL, "--calibration", "warm.json", "--no-controls") == 0
    found = Evaluation.load(Path("out/evaluation.json"))
    assert list(found.arms) == ["plain", "warm"]
    assert "--no-controls" in found.command
    assert _run(model, *SMALL, "--output", "controls", "--controls") == 0
    controls = Evaluation.load(Path("controls/evaluation.json"))
    assert list(controls.arms) == ["plain", "paper in all heads", "uniform beta 1.1"]
    assert "--controls" in controls.command
    assert _run(model, *SMALL, "--output", "bare") == 0
    bare = Evaluation.load(Path("bare/evaluation.json"))
    assert list(bare.arms) == ["plain"]
    assert bare.settings.dtype == "float32"


def test_numbers_of_half_the_width(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = ["--calibration", "warm.json", "--no-controls", "--dtype", "bfloat16"]
    assert _run(model, *SMALL, *half) == 0
    found = Evaluation.load(Path("out/evaluation.json"))
    assert found.settings.dtype == "bfloat16"
    assert all(np.isfinite(result.mean) for result in found.results)
    capsys.readouterr()
    assert _run(model, *SMALL, *half[:-2], "--resume") == 1
    assert "dtype='bfloat16'" in capsys.readouterr().err


def test_a_run_goes_on_with_more(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [*SMALL, "--no-controls"]
    assert _run(model, *some) == 0
    assert _run(model, *some) == 1
    assert "resume it with --resume" in capsys.readouterr().err
    assert _run(model, *some, "--calibration", "warm.json", "--resume") == 0
    assert "evaluating: 1 of 6, passkey at 120, warm" in capsys.readouterr().out
    first, second = Evaluation.load(Path("out/evaluation.json")).command.splitlines()
    assert "--calibration" not in first
    assert "--calibration warm.json" in second
    # Another file under the same name is another arm.
    Path("warm.json").write_bytes(Path("loud.json").read_bytes())
    assert _run(model, *some, "--calibration", "warm.json", "--resume") == 1
    assert "'warm': the evaluation has another change under this name" in capsys.readouterr().err


def test_a_temperature_of_the_model_itself_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    yarn["original_max_position_embeddings"] = 128
    folder = save_llama(tmp_path / "yarn", rope_parameters=yarn)
    assert _run(folder, *SMALL, "--no-controls") == 0
    said = "llama: yarn scales the logits of extended contexts"
    assert f"note: {said}" in capsys.readouterr().out


def test_an_interrupt_says_how_to_go_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluating, "run", stop)
    assert _run(model, *SMALL) == 130
    assert "resume with the same command and --resume" in capsys.readouterr().out


@pytest.mark.parametrize("kind", others())
def test_what_is_no_causal_language_model_is_refused_before_any_work(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, said = others()[kind]
    folder = save(model, tmp_path / kind)
    capsys.readouterr()
    assert _run(folder, *SMALL) == 1
    error = capsys.readouterr().err
    assert f"{type(model).__name__}: " in error
    assert said in error
    assert error.count("\n") == 1
    assert not list(Path().glob("out/*"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--calibration", "none.json"], 1, "none.json: No such file"),
        (["--calibration", "cut.json"], 1, "cut.json: truncated or damaged"),
        (["--calibration", "book.txt"], 1, "book.txt: truncated or damaged"),
        (["--calibration", "plain=warm.json"], 2, "expected a name that no other arm has"),
        (["--calibration", "a=warm.json", "--calibration", "a=loud.json"], 2, "got 'a'"),
        (["--lengths", "120,600"], 1, "book.txt: expected at least"),
        (["--lengths", "510"], 1, "at most the 512 positions of LlamaForCausalLM, got 515"),
        (["--text", "short.txt"], 1, "short.txt: expected at least 150 tokens, the longest"),
        (["--tasks", "passkey,sums"], 2, "--tasks: expected some of passkey, key-value, maximum"),
        (["--wordings", "odd"], 2, "--wordings: expected some of usual, unseen"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], code: int, said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("book.txt").write_text("It was the best of times. " * 22, encoding="utf-8")
    assert _run(model, *SMALL, *arguments) == code
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert error.count("\n") == 1
    assert not list(Path().glob("out/*"))


def test_calibrations_of_other_models_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for settings, said in (
        ({"num_hidden_layers": 1}, "expected 2 attention layers, LlamaForCausalLM has 1"),
        ({"num_attention_heads": 2}, "expected 4 query heads in layer 0"),
    ):
        other = save_llama(tmp_path / "other" / "llama", **settings)
        capsys.readouterr()
        assert _run(other, *SMALL, "--calibration", "warm.json") == 1
        assert said in capsys.readouterr().err
        assert not list(Path().glob("out/*"))
