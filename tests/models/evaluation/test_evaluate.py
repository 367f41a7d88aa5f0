from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import sharpmax
from calibrations import make_evaluation
from sharpmax._files import DamagedFileError, RefusedError, SettingsChangedError
from sharpmax._settings import EvaluationSettings as Settings
from sharpmax.models import (
    Calibration,
    CellResult,
    Evaluation,
    EvaluationProgress,
    answer,
    text_loss,
)
from sharpmax.models._evaluation.cells import Cell, check_cells, questions, windows
from sharpmax.models._evaluation.evaluate import open_evaluation, run
from sharpmax.policies import Constant
from tiny_models import SETTINGS, tokenizer

TOKENS = tokenizer()
TEXTS = ["It was the best of times. " * 80]
RUN = Settings("tiny", {"book": 2080}, questions=4, contexts=2, windows=3)
CELLS = [Cell("passkey", 120), Cell("passkey", 120, "unseen"), Cell("text", 60)]
ARMS = {"plain": None, "flat": Constant(0.5)}


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    torch.manual_seed(0)
    made = hf.LlamaForCausalLM(hf.LlamaConfig(**SETTINGS)).eval()
    for parameter in made.parameters():
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0
    return made


def _run(model: Any, path: Path, **options: Any) -> Evaluation:
    found = open_evaluation(path, RUN, "run it", resume=True)
    arms, cells = options.pop("arms", ARMS), options.pop("cells", CELLS)
    run(found, model, TOKENS, TEXTS, arms, cells, path=path, **options)
    return found


def test_values_are_those_of_the_model_with_its_change(model: Any, tmp_path: Path) -> None:
    ids = torch.arange(40, 60)[None]
    before = model(ids).logits
    found = _run(model, tmp_path / "new" / "evaluation.json")
    assert [(r.arm, r.cell) for r in found.results] == [(a, c) for c in CELLS for a in ARMS]
    asked = questions(CELLS[1], TOKENS, TEXTS, count=4, contexts=2, seed=0)
    read = windows(TOKENS, TEXTS, 60, 3)
    for arm, change in ARMS.items():
        with sharpmax.sharpen(model, change or sharpmax.policies.Identity()), torch.no_grad():
            answers = answer(model, asked)
            losses = text_loss(model, read)
        result = found.find(arm, CELLS[1])
        assert result is not None
        probabilities = [each.log_probability for each in answers]
        assert result.log_probabilities == pytest.approx(probabilities)
        assert result.values == tuple(float(each.exact) for each in answers)
        assert result.contexts == (0, 1, 0, 1)
        text = found.find(arm, CELLS[2])
        assert text is not None
        assert text.values == pytest.approx(losses.tolist())
        assert text.log_probabilities == ()
    assert found.results[2].log_probabilities != found.results[3].log_probabilities
    assert torch.equal(model(ids).logits, before)


def test_a_run_that_was_stopped_goes_on(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    whole = _run(model, tmp_path / "whole.json")
    told: list[tuple[str, Cell]] = []

    def stop(at: EvaluationProgress) -> None:
        told.append((at.arm, at.cell))
        if (at.arm, at.cell, at.answered) == ("flat", CELLS[1], 2):
            assert (at.questions, at.finished, at.total) == (4, 3, 6)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(model, path, on_progress=stop)
    assert model.config._attn_implementation == "sdpa", "nothing is left half-patched"
    stopped = Evaluation.load(path)
    assert len(stopped.results) == 3
    told.clear()
    gone_on = _run(model, path, on_progress=lambda at: told.append((at.arm, at.cell)))
    assert set(told) == {("flat", CELLS[1]), ("plain", CELLS[2]), ("flat", CELLS[2])}
    assert gone_on.results == whole.results
    assert Evaluation.load(path).results == whole.results
    told.clear()
    _run(model, path, on_progress=lambda at: told.append((at.arm, at.cell)))
    assert told == []


def test_more_arms_and_cells_can_be_added(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    _run(model, path, arms={"plain": None}, cells=CELLS[:1])
    found = _run(model, path, arms={"sharp": Constant(2.0), **ARMS})
    assert len(found.results) == 3 * 3
    assert Evaluation.load(path).arms["sharp"]["parameters"] == {"beta": 2.0}


def test_an_earlier_run_is_not_overwritten(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    _run(model, path, cells=CELLS[2:])
    with pytest.raises(FileExistsError, match="resume it with --resume"):
        open_evaluation(path, RUN, "")
    other = Settings("tiny", {"book": 2080}, questions=5, contexts=2, windows=3)
    with pytest.raises(SettingsChangedError, match="the same settings"):
        open_evaluation(path, other, "", resume=True)
    with pytest.raises(SettingsChangedError, match="'flat': the evaluation has another change"):
        _run(model, path, arms={"flat": Constant(0.3333333333333333)})
    assert len(Evaluation.load(path).results) == 2


def test_files_that_were_edited_or_cut_off_are_refused(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    _run(model, path, cells=CELLS[2:])
    content = json.loads(path.read_text(encoding="utf-8"))
    content["results"][0]["values"][0] -= 1.0
    edited, cut = tmp_path / "edited.json", tmp_path / "cut.json"
    edited.write_text(json.dumps(content), encoding="utf-8")
    cut.write_bytes(path.read_bytes()[:-40])
    for file, said in ((edited, "was changed after it was written"), (cut, "truncated or damaged")):
        with pytest.raises(DamagedFileError, match=said):
            open_evaluation(file, RUN, "", resume=True)


def test_what_does_nothing_is_not_asked_again(model: Any, tmp_path: Path) -> None:
    told: list[str] = []
    empty = Calibration.of(model, {})
    found = _run(
        model, tmp_path / "evaluation.json", arms={"plain": None, "empty": empty},
        on_progress=lambda at: told.append(at.arm),
    )  # fmt: skip
    assert set(told) == {"plain"}
    for cell in CELLS:
        plain, other = found.find("plain", cell), found.find("empty", cell)
        assert plain is not None
        assert other is not None
        assert other.less(plain) == (0.0, (0.0, 0.0))


def test_differences_are_of_pairs() -> None:
    result = CellResult("a", "passkey", 64, "usual", (1.0, 1.0, 0.0, 1.0), (), (0, 0, 1, 1))
    other = CellResult("b", "passkey", 64, "usual", (1.0, 0.0, 0.0, 0.0), (), (0, 0, 1, 1))
    assert result.less(other) == (0.5, (0.5, 0.5))
    assert result.mean == 0.75
    assert result.interval == (0.5, 1.0)
    longer = CellResult("b", "passkey", 65, "usual", other.values, (), other.contexts)
    with pytest.raises(
        ValueError, match="other: expected a result of passkey at 64, got passkey at 65"
    ):
        result.less(longer)


def test_a_file_has_means_and_intervals(tmp_path: Path) -> None:
    made = make_evaluation(cells=CELLS[:1], questions=20, contexts=5)
    path = made.save(tmp_path / "evaluation.json")
    entry = json.loads(path.read_text(encoding="utf-8"))["results"][1]
    assert entry["mean"] == pytest.approx(np.mean(entry["values"]))
    low, high = entry["interval"]
    assert low <= entry["mean"] <= high
    assert Evaluation.load(path) == made
    assert Evaluation.from_dict(json.loads(made.to_json())) == made


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([Cell("passkey", 600)], "at most the 512 positions of LlamaForCausalLM, got 600"),
        # Five digits of which the last is not read, and a space.
        ([Cell("passkey", 510)], "got 515 tokens; use shorter inputs"),
        ([Cell("key-value", 200)], "length: expected at least"),
        ([Cell("text", 500), Cell("passkey", 40)], "length: expected at least"),
    ],
)
def test_what_cannot_be_asked_is_said_before_the_work(
    cells: list[Cell], said: str, model: Any
) -> None:
    with pytest.raises(ValueError, match=said):
        check_cells(model, TOKENS, TEXTS, cells)
    check_cells(model, TOKENS, TEXTS, [*CELLS, Cell("key-value", 420), Cell("maximum", 200)])


def test_a_model_and_a_tokenizer_are_enough(model: Any) -> None:
    found = sharpmax.evaluate(model, TOKENS, questions=2, contexts=2, windows=2)
    assert list(found.arms) == ["plain"]
    assert {r.task for r in found.results} == {"passkey", "key-value", "maximum", "text"}
    assert {r.length for r in found.results} == {480}
    assert found.settings.texts.keys() == {f"the source code of sharpmax {sharpmax.__version__}"}
    lines = found.summary().splitlines()
    assert lines[0] == "llama (float32): 2 questions in 2 contexts, or 2 windows, per cell"
    assert lines[3].split() == ["task", "arm", "480"]
    assert len(lines) == 4 + 6, "no verdict without calibrations"
    assert lines[-1].startswith("text")


def test_a_folder_has_one_evaluation_at_a_time(
    model: Any, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    asked = {"tasks": ["passkey"], "questions": 2, "contexts": 2, "path": tmp_path / "held" / "e"}
    with pytest.raises(RefusedError, match="held: another run is writing to this folder"):
        sharpmax.evaluate(model, TOKENS, **asked)
    with pytest.raises(RefusedError, match="held: another run is writing to this folder"):
        sharpmax.evaluate(model, metric=lambda *_: [1.0], data={4: [0]}, path=asked["path"])
    holder.kill()
    holder.wait()
    sharpmax.evaluate(model, TOKENS, **asked)
    assert asked["path"].exists()


def test_changes_are_compared_with_controls_and_judged(model: Any, tmp_path: Path) -> None:
    warm = Calibration.of(model, {0: Constant([2.0, 1.0, 1.0, 1.0])})
    loud = Calibration.of(model, {}, gains={0: [1.5, 1.0, 1.0, 1.0]})
    path = tmp_path / "evaluation.json"
    options: dict[str, Any] = {
        "tasks": ["passkey"], "lengths": [120], "questions": 4, "contexts": 2, "path": path,
        "changes": {"warm": warm, "loud": loud, "sharp": Constant(2.0)},
    }  # fmt: skip
    found = sharpmax.evaluate(model, TOKENS, {"book": TEXTS[0]}, **options)
    assert list(found.arms) == [
        "plain", "warm", "loud", "sharp", "paper in all heads", "uniform beta 1.1", "shuffled warm",
    ]  # fmt: skip
    assert found.calibrations.keys() == {"warm", "loud"}
    verdict = found.verdict()
    assert (verdict.temperature, verdict.gain, verdict.both) == ("warm", "loud", None)
    assert f"verdict: {verdict.case}" in found.summary()
    assert "warm against plain: " in found.summary()
    loaded = Evaluation.load(path)
    assert loaded == found
    assert loaded.verdict() == verdict
    with pytest.raises(FileExistsError, match="holds an earlier run"):
        sharpmax.evaluate(model, TOKENS, {"book": TEXTS[0]}, **options)
    again = sharpmax.evaluate(
        model, TOKENS, {"book": TEXTS[0]}, **options, resume=True,
        on_progress=lambda _: pytest.fail("asked again"),
    )  # fmt: skip
    assert again.results == found.results


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tasks": ["sums"]}, "tasks: expected some of passkey, key-value, maximum, text"),
        ({"wordings": ["odd"], "tasks": ["passkey"]}, "wordings: expected some of usual, unseen"),
        ({"texts": "short"}, "text: expected at least 480 tokens, the longest of the lengths"),
        ({"lengths": [510]}, "at most the 512 positions of LlamaForCausalLM, got 515"),
        ({"changes": {"plain": Constant(2.0)}}, "expected names other than those of controls"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options: Any, said: str, model: Any) -> None:
    with pytest.raises(ValueError, match=said):
        sharpmax.evaluate(model, TOKENS, **options)
