"""Run the examples, if what they need is installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from sharpmax.models import Calibration, OtherModelError
from sharpmax.policies import Constant

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.fixture
def harness() -> dict[str, Any]:
    pytest.importorskip("lm_eval")
    return runpy.run_path(str(FOLDER / "lm_eval_sharpened.py"))


def _bits(said: str) -> list[float]:
    return [
        float(line.split("|")[-4])
        for line in said.splitlines()
        if line.startswith("|clrs_text_loss")
    ]


@pytest.mark.filterwarnings("default")
def test_a_model_in_the_harness(
    harness: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = harness["random_model"]()
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "model")
    file = Calibration.of(model, {0: Constant([5.0, 1.0, 1.0, 1.0])}).save(tmp_path / "warm.json")
    harness["main"](["--model", str(tmp_path / "model"), "--calibration", str(file)])
    plain, calibrated = _bits(capsys.readouterr().out)
    assert plain != calibrated
    # Made here, with the same weights; the change is another one.
    harness["main"]([])
    again, sharpened = _bits(capsys.readouterr().out)
    assert again == plain
    assert len({plain, calibrated, sharpened}) == 3


def test_a_calibration_of_another_model_is_refused(harness: dict[str, Any], tmp_path: Path) -> None:
    Calibration("", "llama", (9,) * 30).save(tmp_path / "other.json")
    with pytest.raises(OtherModelError, match="30 attention layers, LlamaForCausalLM has 2"):
        harness["main"](["--calibration", str(tmp_path / "other.json")])


def test_the_head_of_the_paper_in_flax(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    example = runpy.run_path(str(FOLDER / "max_retrieval_flax.py"))
    example["main"](steps=400, sizes=(16, 256), sets=256)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "softmax"
    assert lines[2].startswith("Exponential(reference=")
    (seen, more), (_, mended) = (
        [float(cell.split()[1].rstrip("%")) for cell in line.split(", ")] for line in lines[1::2]
    )
    assert seen > 40  # ten classes, so chance is 10
    assert more < seen
    assert mended != more
