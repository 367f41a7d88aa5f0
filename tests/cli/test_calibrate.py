from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpmax.cli import main
from sharpmax.models import Calibration, Evaluation, EvaluationProgress
from sharpmax.models._evaluation import evaluate as evaluating
from sharpmax.models._evaluation.study import Study
from tiny_models import others, save, save_llama

SMALL = [
    "--text", "book.txt", "--tasks", "passkey", "--lengths", "120", "--families", "constant,gain",
    "--steps", "2", "--batch", "1", "--contexts", "3,3,2", "--windows", "2,2,2",
    "--evaluate-tasks", "passkey,text", "--evaluate-lengths", "120", "--questions", "4",
    "--evaluate-contexts", "2", "--evaluate-windows", "2", "--output", "out",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(autouse=True)
def _in_a_folder_with_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book = "".join(f"It was the {place}th of times. " for place in range(100))
    Path("book.txt").write_text(book, encoding="utf-8")
    Path("other.txt").write_text(book.upper(), encoding="utf-8")
    Path("empty.txt").write_text(" \n", encoding="utf-8")
    Path("bytes.txt").write_bytes(b"\xff\xfe\xff")
    Path("short.txt").write_text("To be, or not to be? " * 8, encoding="utf-8")


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["calibrate", *map(str, arguments)])
    return exit_.value.code


def test_fits_compares_and_writes_a_report(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(model, *SMALL, "--test-text", "other.txt") == 0
    said = capsys.readouterr().out
    assert "constant: fitting: 2 of 2, loss on answers" in said
    assert "gain: selecting heads" in said
    assert Calibration.load("out/families/gain.json").summary() in said
    assert "evaluating: 1 of" in said
    assert "Results for all arms" in said
    assert f"Calibration: {Path('out/calibration.json')}" in said
    names = {path.name for path in Path("out").iterdir()}
    assert names == {
        "families", "calibration.json", "evaluation.json", "report.html", "table.md",
        "accuracy.png", "trade.png",
    }  # fmt: skip
    calibration = Calibration.load("out/calibration.json")
    assert calibration.notes["settings"]["texts"].keys() == {"book.txt"}
    assert calibration.notes["settings"]["test_texts"].keys() == {"other.txt"}
    evaluation = Evaluation.load(Path("out/evaluation.json"))
    assert evaluation.settings.texts.keys() == {"other.txt"}
    assert {"plain", "constant", "gain", "paper in all heads"} <= evaluation.arms.keys()
    assert {result.wording for result in evaluation.results} == {"usual", "unseen"}
    assert evaluation.command.startswith("sharpmax calibrate llama --text book.txt --test-text")
    assert evaluation.command.endswith("--output out")
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page, "folders are nobody's business"
    assert str(model.parent) not in page


def test_gains_are_a_control_of_whatever_is_wanted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[tuple[str, ...]] = []
    choose = Study.choose

    def watched(self: Study, families: tuple[str, ...]) -> Calibration:
        chosen.append(families)
        return choose(self, families)

    monkeypatch.setattr(Study, "choose", watched)
    assert _run(model, *SMALL, "--families", "constant", "--evaluate-tasks", "passkey") == 0
    assert chosen == [("constant",)]
    assert {path.stem for path in Path("out/families").iterdir()} == {"constant", "gain"}
    assert Calibration.load("out/calibration.json").notes["family"] == "constant"
    arms = Evaluation.load(Path("out/evaluation.json")).arms
    assert {"plain", "constant", "gain", "paper in all heads", "uniform beta 1.1"} <= arms.keys()
    assert "shuffled gain" not in arms


def test_what_is_not_compared_is_said_to_be_so(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(model, *SMALL, "--families", "gain", "--evaluate-tasks", "text") == 0
    said = capsys.readouterr().out
    assert (
        "note: the evaluation has none of the fitted tasks (passkey), so there will be no" in said
    )
    assert "No arms were compared, so no conclusion can be drawn about this model." in said
    assert Path("out/calibration.json").exists()


def test_text_is_fitted_where_it_is_the_task(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--tasks", "text", "--lengths", "60,100", "--evaluate-tasks", "text"]
    assert _run(model, *arguments) == 0
    said = capsys.readouterr().out
    assert "gain: fitting: 2 of 2, loss on text" in said
    assert "test windows" in said
    found = Calibration.load("out/families/gain.json")
    assert (found.objective, found.lengths) == ("nats per token", (100,))
    assert found.notes["settings"]["tasks"] == ["text"]
    assert "text" not in found.notes["test"]
    assert not Path("out/trade.png").exists(), "text has nothing else to be traded against"


def test_heads_are_chosen_by_exact_answers(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--families", "gain", "--objective", "exact"]
    assert _run(model, *arguments) == 0
    found = Calibration.load("out/families/gain.json")
    assert found.objective == "share of wrong answers"
    assert found.notes["settings"]["objective"] == "exact"
    assert found.before in (0.0, 0.5, 1.0), "two questions"
    assert _run(model, *arguments, "--resume") == 0
    capsys.readouterr()
    assert _run(model, *SMALL, "--families", "gain", "--resume") == 1
    assert "the run there has objective exact, not answers" in capsys.readouterr().err


def test_a_temperature_of_the_model_itself_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    yarn["original_max_position_embeddings"] = 128
    folder = save_llama(tmp_path / "yarn", rope_parameters=yarn)
    assert _run(folder, *SMALL, "--families", "gain") == 0
    said = "llama: yarn scales the logits of extended contexts"
    assert f"note: {said}" in capsys.readouterr().out
    assert Calibration.load("out/families/gain.json").notes["own_temperatures"] == [said]


def test_an_interrupt_says_how_to_go_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = evaluating.run

    def interrupted(*arguments: Any, **options: Any) -> None:
        def stop(at: EvaluationProgress) -> None:
            if (at.arm, at.cell.task) == ("gain", "text"):
                raise KeyboardInterrupt

        run(*arguments, **{**options, "on_progress": stop})

    monkeypatch.setattr(evaluating, "run", interrupted)
    assert _run(model, *SMALL) == 130
    said = capsys.readouterr().out
    assert (
        "Interrupted. Finished results are in out; resume with the same command and --resume."
        in said
    )
    kept = len(Evaluation.load(Path("out/evaluation.json")).results)
    assert kept > 0
    monkeypatch.setattr(evaluating, "run", run)
    # Without being asked to, nothing goes on; with other settings, neither.
    assert _run(model, *SMALL) == 1
    assert "holds an earlier run; resume it with --resume" in capsys.readouterr().err
    assert _run(model, *SMALL, "--resume", "--steps", "3") == 1
    assert "the run there has steps 2, not 3" in capsys.readouterr().err
    assert _run(model, *SMALL, "--resume", "--questions", "5") == 1
    assert "the same settings" in capsys.readouterr().err
    assert _run(model, *SMALL, "--resume") == 0
    said = capsys.readouterr().out
    assert "fitting" not in said
    assert "Results for all arms" in said


def test_the_text_of_the_package_serves_without_another(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def stop(*arguments: Any) -> None:
        seen["texts"] = arguments[4]
        raise ValueError("enough")

    monkeypatch.setattr("sharpmax.models._evaluation.study.Study.fit", stop)
    assert _run(model, *SMALL[2:]) == 1
    assert len(seen["texts"].test) == 1
    assert "def " in seen["texts"].test[0]


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
        (
            ["--lengths", "many"],
            2,
            "--lengths: expected whole numbers above 0, separated by commas",
        ),
        (["--lengths", "0,64"], 2, "got '0,64'"),
        (["--contexts", "3,3"], 2, "--contexts: expected 3 whole numbers above 0"),
        (["--tasks", "passkey,text"], 2, "--tasks: expected text alone, or tasks without text"),
        (["--tasks", "passkeys"], 2, "--tasks: expected some of passkey, key-value, maximum, text"),
        (["--objective", "right"], 2, "'right' is not one of 'answers', 'exact'"),
        (["--tasks", "text", "--objective", "exact"], 2, "expected answers, because text has no"),
        (["--families", "gain,all"], 2, "--families: expected some of constant, entropy, gain"),
        (["--evaluate-tasks", "minimum"], 2, "got 'minimum'"),
        (
            ["--text", "empty.txt"],
            2,
            "--text: expected a file with text, got empty.txt, which is empty",
        ),
        (["--text", "bytes.txt"], 2, "expected text in UTF-8, got other bytes in bytes.txt"),
        (["--text", "book.txt"], 2, "expected files with different names, got book.txt twice"),
        (["--text", "none.txt"], 1, "none.txt: No such file"),
        (["--text", "short.txt"], 1, "short.txt: expected at least 120 tokens in its part for"),
        (["--test-text", "short.txt", "--evaluate-lengths", "200"], 1, "in its part for the test"),
        (["--evaluate-lengths", "2000"], 1, "expected at least 2,000 tokens"),
        (
            ["--evaluate-lengths", "510", "--test-text", "other.txt"],
            1,
            "at most the 512 positions of Llama",
        ),
        (["--lengths", "40"], 1, "length: expected at least"),
        (["--tolerance", "-1"], 2, "--tolerance"),
        (["--output", "empty.txt/new"], 1, "empty.txt"),
    ],
)
def test_bad_arguments_are_one_line_and_nothing_is_fitted(
    arguments: list[str],
    code: int,
    said: str,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert _run(model, *SMALL, *arguments) == code
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert error.count("\n") == 1
    assert not list(Path().glob("out/*"))


@pytest.mark.parametrize("module", ["matplotlib", "transformers"])
def test_a_missing_extra_is_named_before_the_work(
    module: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert _run(model, *SMALL) == 1
    assert f"needs {module}, which is not installed" in capsys.readouterr().err


def test_damaged_files_are_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(model, *SMALL, "--evaluate-tasks", "passkey") == 0
    path = Path("out/families/gain.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "after": 0.0}), encoding="utf-8")
    capsys.readouterr()
    assert _run(model, *SMALL, "--resume") == 1
    assert "gain.json: the file was changed after it was written" in capsys.readouterr().err
