from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sharpmax
from sharpmax.cli import main
from sharpmax.models import Calibration, load_model
from sharpmax.policies import Constant, Exponential
from tiny_models import save_llama


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["fold", *map(str, arguments)])
    return exit_.value.code


def test_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_llama(tmp_path / "llama")
    (folder / "README.md").write_text("# Abacus\n", encoding="utf-8")
    (tmp_path / "book.txt").write_text("It was the best of times. " * 20, encoding="utf-8")
    model, _ = load_model(folder)
    Calibration.of(model, {0: Constant([1.5, 1.0, 0.7, 1.0])}, gains={1: [1, 1, 2, 1]}).save(
        "c.json"
    )
    asked = ("llama", "--calibration", "c.json", "--text", "book.txt", "--output", "out")
    assert _run(*asked) == 0
    said = capsys.readouterr().out
    assert "llama: 2 temperatures and 1 gain folded into the weights" in said
    assert "positions of text" in said
    tokens = torch.arange(32, 96)[None]
    with torch.no_grad(), sharpmax.sharpen(model, Calibration.load("c.json")):
        expected = model(tokens).logits
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained("out").eval()(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained("out")("times").input_ids
    card = Path("out/README.md").read_text("utf-8")
    assert card.startswith("# Abacus\n\n## Attention calibration")
    assert _run(*asked) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err


def test_refused_or_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = load_model(save_llama(tmp_path / "llama"))
    Calibration.of(model, {0: Exponential(0.5)}, gains={1: [1, 1, 2, 1]}).save("c.json")
    asked = ("llama", "--calibration", "c.json", "--output", "out")
    assert _run(*asked) == 1
    assert "Exponential gives each row its own temperature" in capsys.readouterr().err
    assert not Path("out").exists()
    assert _run(*asked, "--partial") == 0
    rest = Calibration.load("out/rest.json", load_model("out")[0])
    assert [layer.index for layer in rest.layers] == [0]
