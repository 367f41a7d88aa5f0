from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from calibrations import CALIBRATIONS, make_calibration
from sharpmax._files import DamagedFileError, SettingsChangedError
from sharpmax._settings import CalibrationSettings as Settings
from sharpmax._settings import EvaluationSettings
from sharpmax.models import OtherModelError
from sharpmax.models._evaluation.cells import Cell
from sharpmax.models._evaluation.evaluate import open_evaluation, run
from sharpmax.models._evaluation.splits import split_texts
from sharpmax.models._evaluation.study import Study
from tiny_models import SETTINGS, tokenizer

TOKENS = tokenizer()
TEXT = "".join(f"It was the {place}th of times. " for place in range(120))
RUN = Settings(
    "tiny", {"book": len(TEXT)}, {}, tasks=("passkey",), lengths=(120,), contexts=(4, 4, 3),
    windows=(3, 3, 2), steps=3, batch=2, learning_rate=0.2, tolerance=9.0,
)  # fmt: skip
MEASURED = EvaluationSettings("tiny", {"book": 100}, questions=4, contexts=2, windows=2)


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    torch.manual_seed(0)
    made = hf.LlamaForCausalLM(hf.LlamaConfig(**SETTINGS)).eval()
    for parameter in made.parameters():
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0
    return made


def _study(folder: Path, settings: Settings = RUN, *, resume: bool = True) -> Study:
    return Study(folder, settings, "sharpmax calibrate tiny", resume=resume)


def test_families_are_fitted_once_and_compared(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = split_texts([TEXT])
    study = _study(tmp_path, resume=False)
    stages: list[str] = []
    for family in ("constant", "gain"):
        study.fit(family, model, TOKENS, texts, lambda stage: stages.append(stage.name))
    assert {"fit", "select", "test"} == set(stages)
    files = sorted(path.name for path in (tmp_path / "families").iterdir())
    assert files == ["constant.json", "gain.json"]
    gain = study.calibrations["gain"]
    assert gain.notes["family"] == "gain"
    assert gain.notes["settings"]["tasks"] == ["passkey"]
    assert gain.split_sizes == {"fit": 4, "select": 4, "test": 3}
    assert gain.lengths == (120,)

    # Going on, nothing is fitted again.
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr("sharpmax.models._evaluation.study.calibrate", fails)
    study = _study(tmp_path)
    assert study.fit("gain", model, TOKENS, texts).to_dict() == gain.to_dict()
    study.fit("constant", model, TOKENS, texts)
    with pytest.raises(AssertionError, match="fitted again"):
        study.fit("constant+gain", model, TOKENS, texts)
    chosen = study.choose(["constant", "gain"])
    assert (tmp_path / "calibration.json").exists()
    assert chosen in study.calibrations.values()
    arms = study.arms(["constant", "gain"])
    assert list(arms)[:3] == ["plain", "constant", "gain"]
    path, cells = study.evaluation_path, [Cell("passkey", 120), Cell("text", 100)]
    found = open_evaluation(path, MEASURED, "")
    run(found, model, TOKENS, texts.test, arms, cells, path=path)
    again = open_evaluation(path, MEASURED, "", resume=True)
    assert len(again.results) == 2 * len(arms)
    assert again.calibrations.keys() == {"constant", "gain"}
    assert again.verdict() == found.verdict()
    with pytest.raises(SettingsChangedError, match="the same settings"):
        open_evaluation(path, replace(MEASURED, questions=5), "", resume=True)


def test_a_run_that_was_stopped_in_a_fit_goes_on(model: Any, tmp_path: Path) -> None:
    texts = split_texts([TEXT])

    def stop(stage: Any) -> None:
        if stage.name == "select":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _study(tmp_path).fit("gain", model, TOKENS, texts, stop)
    assert model.config._attn_implementation == "sdpa"
    study = _study(tmp_path, resume=False)
    assert study.calibrations == {}


def _keep(folder: Path, family: str = "constant", settings: Settings = RUN) -> Path:
    """A finished family, as a run leaves it."""
    calibration = CALIBRATIONS[family]
    notes = {**calibration.notes, "settings": settings.to_dict()}
    return replace(calibration, notes=notes).save(folder / "families" / f"{family}.json")


def test_an_earlier_run_is_neither_overwritten_nor_mixed(model: Any, tmp_path: Path) -> None:
    path = _keep(tmp_path)
    with pytest.raises(FileExistsError, match="resume it with --resume, or choose another"):
        _study(tmp_path, resume=False)
    for name, value in (("steps", 4), ("lengths", (120, 130)), ("texts", {"other": 5})):
        changed = replace(RUN, **{name: value})
        with pytest.raises(SettingsChangedError, match=f"the run there has {name} .* not "):
            _study(tmp_path, changed)
    assert list(_study(tmp_path).calibrations) == ["constant"]
    with pytest.raises(OtherModelError, match="3 attention layers, LlamaForCausalLM has 2"):
        _study(tmp_path).fit("constant", model, TOKENS, split_texts([TEXT]))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["after"] = 0.0
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DamagedFileError, match="was changed after it was written"):
        _study(tmp_path)


def test_where_nothing_holds_the_choice_is_empty(tmp_path: Path) -> None:
    study = _study(tmp_path)
    study.calibrations = {
        name: make_calibration(name, certain=None) for name in ("gain", "entropy")
    }
    assert study.choose(["gain", "entropy"]).layers == ()
    assert json.loads((tmp_path / "calibration.json").read_text("utf-8"))["layers"] == []


def test_the_law_of_the_entropy_is_not_asked_to_flatten(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, bool] = {}
    calibrate = sys.modules["sharpmax.models"].calibrate

    def spy(*arguments: Any, family: str, flatten: bool, **options: Any) -> Any:
        asked[family] = flatten
        return calibrate(*arguments, family=family, flatten=flatten, **{**options, "steps": 1})

    monkeypatch.setattr("sharpmax.models._evaluation.study.calibrate", spy)
    study = _study(tmp_path, replace(RUN, flatten=True))
    for family in ("constant", "entropy"):
        study.fit(family, model, TOKENS, split_texts([TEXT]))
    assert asked == {"constant": True, "entropy": False}
