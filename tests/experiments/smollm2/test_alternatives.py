from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sharpmax
import tiny_models
from experiments.common.command import main
from experiments.common.timing import read_benchmark
from experiments.smollm2.__main__ import app
from experiments.smollm2.adapters import adapted, train
from experiments.smollm2.tables import alternatives_tables
from sharpmax._files import write_json
from sharpmax._settings import CalibrationSettings
from sharpmax.models import Calibration, Shared, Splits, Window, load_model
from sharpmax.tasks import Question


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(app, [str(argument) for argument in arguments])
    return stopped.value.code


def test_a_quick_comparison_goes_on_with_further_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    quick = ["alternatives", "--quick", "--output", folder]
    assert _run(*quick, "--methods", "plain,gain") == 0
    path = folder / "alternatives.json"
    before = read_benchmark(path)["records"]
    # A fit, and five cells at each of two lengths.
    assert len(before) == 2 * 11
    assert _run(*quick, "--methods", "plain") == 1
    assert "holds an earlier run" in capsys.readouterr().err

    assert _run(*quick, "--methods", "gain,examples,channel,lora 1", "--resume") == 0
    result = read_benchmark(path)
    assert result["records"][: len(before)] == before
    assert len(result["records"]) == 5 * 11 - 2  # examples change nothing about text
    assert [each["session"] for each in result["records"]] == [0] * 22 + [1] * 31
    assert "channel" in result["sessions"][1]["command"]
    assert _run(*quick, "--methods", "plain", "--steps", 1, "--resume") == 1
    assert "resume it with the same settings" in capsys.readouterr().err

    cost, answers = alternatives_tables(result)
    rows = {row[0]: row for row in cost.rows}
    assert rows["calibration, gains (SEAL per head)"][1] == "8"
    assert rows["calibration, gains (SEAL per head)"][5] == "yes"
    assert rows["LoRA, r = 1"][1] == "448"
    times = {each["method"]: each["seconds"] for each in result["records"] if "numbers" in each}
    assert times["lora 1"] > 0 < times["gain"]
    assert rows["nothing"][1:] == [""] * 6
    assert answers.header[1:5] == ["seen, 400", "seen, 440", "unseen, 400", "unseen, 440"]
    assert {row[0]: row for row in answers.rows}["three examples in the prompt"][5] == (
        "+0.0 [+0.0, +0.0]"
    )
    # Without one of its cells, a method is left out.
    result["records"].pop()
    assert [len(table.rows) for table in alternatives_tables(result)] == [4, 4]

    # What is measured of a method goes with the file of its fit.
    for method, file in (("lora 1", "adapters/lora 1.safetensors"), ("gain", "families/gain.json")):
        (folder / file).unlink()
        last = next(each for each in reversed(result["records"]) if each["method"] == method)
        result["records"].remove(last)
        write_json(path, result)
        assert _run(*quick, "--methods", method, "--resume") == 1
        assert "expected the file that was fitted, got none" in capsys.readouterr().err


def test_calibrations_and_answers_of_an_earlier_run_are_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, folder = tmp_path / "earlier", tmp_path / "run"
    quick = ["alternatives", "--quick", "--output", folder, "--methods", "plain,gain"]
    assert _run(*quick) == 0
    made = read_benchmark(folder / "alternatives.json")["records"]
    calibration = Calibration.load(folder / "families/gain.json")
    text = (folder / "test.txt").read_text(encoding="utf-8")
    model, tokenizer = load_model(folder / "model")
    sharpmax.evaluate(
        model, tokenizer, {"test.txt": text}, changes={"gain": calibration}, controls=False,
        tasks=("passkey",), wordings=("usual",), lengths=(400,), questions=4, contexts=2,
        windows=2, path=earlier / "evaluation.json",
    )  # fmt: skip
    shutil.copytree(folder / "families", earlier / "families")
    shutil.rmtree(folder)
    assert _run(*quick, "--earlier", earlier) == 0
    found = read_benchmark(folder / "alternatives.json")["records"]
    assert sum(each.get("earlier", False) for each in found) == 2
    assert found[0] == made[0]
    for now, before in zip(found, made, strict=True):
        assert {**now, "earlier": 0, "seconds": 0} == {**before, "earlier": 0, "seconds": 0}
    assert [each["seconds"] for each in found if each["task"] == "fit"] == [None, None]

    other = [*quick[:-2], "--steps", 1, "--methods", "gain", "--earlier", earlier]
    shutil.rmtree(folder)
    assert _run(*other) == 1
    assert "resume it with the same settings" in capsys.readouterr().err


def _data() -> tuple[LlamaForCausalLM, Splits[Question], Splits[Window]]:
    """Return a tiny Llama, questions whose answers are always the same, and text."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**tiny_models.SETTINGS)).eval()

    def question(number: int) -> Question:
        ids = tuple(torch.randint(32, 127, (20,)).tolist())
        return Question(ids, "", (40, 41), 0, number, 0.5)

    def window(number: int) -> Window:
        return Window(tuple(torch.randint(32, 127, (16,)).tolist()), number)

    data = Splits(*([question(number) for number in range(4)] for _ in range(3)))
    text = Splits(*([window(number) for number in range(4)] for _ in range(3)))
    return model, data, text


@pytest.mark.parametrize(("kind", "rank", "numbers"), [("lora", 2, 2 * 2 * 224), ("ia3", 0, 64)])
def test_an_adapter_is_trained_kept_under_the_guard_and_removed(
    kind: str, rank: int, numbers: int
) -> None:
    model, data, text = _data()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = CalibrationSettings("", {}, {}, steps=12, tolerance=9.0, text_weight=0.01)
    trained = train(model, kind, rank, data, text, settings)
    assert trained.numbers == numbers
    # The answers are always the same, so learning them helps on other questions.
    assert trained.scale > 0
    assert trained.candidates[trained.scale][0] > 0
    with torch.no_grad():
        plain = model(torch.tensor([data.test[0].ids])).logits
        with adapted(model, kind, rank, trained.weights):
            assert not torch.equal(model(torch.tensor([data.test[0].ids])).logits, plain)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    strict = CalibrationSettings("", {}, {}, steps=2, tolerance=0.0, text_weight=0.0)
    nothing = train(model, kind, rank, data, text, strict)
    assert nothing.scale == 0
    with adapted(model, kind, rank, nothing.weights), torch.no_grad():
        torch.testing.assert_close(model(torch.tensor([data.test[0].ids])).logits, plain)


def test_a_fit_that_was_stopped_goes_on_to_the_same_adapter(tmp_path: Path) -> None:
    model, data, text = _data()
    settings = CalibrationSettings("", {}, {}, steps=12, tolerance=9.0, text_weight=0.01)
    whole = train(model, "lora", 2, data, text, settings)
    state, steps = tmp_path / "state", list[int]()

    def stop(step: int) -> None:
        steps.append(step)
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, "lora", 2, data, text, settings, state=state, on_step=stop)
    assert not any("lora" in name for name, _ in model.named_parameters())
    resumed = train(model, "lora", 2, data, text, settings, state=state, on_step=steps.append)
    assert steps == [*range(1, 8), *range(6, 13)]
    assert resumed.candidates == whole.candidates
    for name, value in whole.weights.items():
        assert torch.equal(resumed.weights[name], value), name


def test_adapters_share_what_the_original_model_computes() -> None:
    model, data, text = _data()
    settings = CalibrationSettings("", {}, {}, steps=3, tolerance=9.0, text_weight=0.01)
    passes = [0]
    model.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    shared, counts, found = Shared(), list[int](), list[Any]()
    for given in (None, shared, shared):
        passes[0] = 0
        found.append(train(model, "ia3", 0, data, text, settings, shared=given))
        counts.append(passes[0])
    # Once the losses before on four contexts and four windows, and predictions on the four windows.
    assert [counts[0] - each for each in counts] == [0, 0, 12]
    assert found[0].candidates == found[1].candidates == found[2].candidates
