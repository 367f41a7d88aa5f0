from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
from experiments.common.command import main
from experiments.common.timing import read_benchmark
from experiments.smollm2.__main__ import app
from experiments.smollm2.adapters import adapted, train
from experiments.smollm2.tables import alternatives_table
from sharpmax._settings import CalibrationSettings
from sharpmax.models import Splits, Window
from sharpmax.tasks import Question


def test_a_quick_comparison_fits_measures_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    few = ["alternatives", "--quick", "--output", str(folder)]
    for methods in ("plain,gain,examples", "plain,gain,examples,channel,lora 1"):
        with pytest.raises(SystemExit) as stopped:
            main(app, [*few, "--methods", methods, "--resume"])
        # Another command is another run; the first one can be resumed.
        assert stopped.value.code == (0 if "lora" not in methods else 1)
        result = read_benchmark(folder / "alternatives.json")
        assert len(result["records"]) == 3 * 6
    rows = {row[0]: row for row in alternatives_table(result).rows}
    assert rows["calibration, gains (SEAL per head)"][1] == "8"
    assert rows["nothing"][1:4] == ["", "", ""]
    assert rows["three examples in the prompt"][5].startswith("0.0, +0.0 [")


@pytest.mark.parametrize(("kind", "rank", "numbers"), [("lora", 2, 2 * 2 * 224), ("ia3", 0, 64)])
def test_an_adapter_is_trained_kept_under_the_guard_and_removed(
    kind: str, rank: int, numbers: int
) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**tiny_models.SETTINGS)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def question(number: int) -> Question:
        ids = tuple(torch.randint(32, 127, (20,)).tolist())
        return Question(ids, "", (40, 41), 0, number, 0.5)

    def window(number: int) -> Window:
        return Window(tuple(torch.randint(32, 127, (16,)).tolist()), number)

    data = Splits(*([question(number) for number in range(4)] for _ in range(3)))
    text = Splits(*([window(number) for number in range(4)] for _ in range(3)))
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
