"""The example of the document about ONNX, and the logits of its file in onnxruntime."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sharpmax
import tiny_models
from sharpmax.models import Calibration
from sharpmax.policies import Constant

DOCUMENT = Path(__file__).parents[3] / "docs/fold.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_folded_model_computes_the_same_in_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    text = DOCUMENT.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**tiny_models.SETTINGS)).eval()
    for parameter in model.parameters():
        parameter.data *= 8.0 if parameter.ndim > 1 else 1.0  # so that attention matters
    calibration = Calibration.of(
        model, {0: Constant([1.4, 1.0, 0.8, 1.0])}, gains={1: [1.0, 1.2, 1.0, 0.7]}
    )
    tokens = torch.randint(32, 127, (1, 40))
    with torch.no_grad():
        plain = model(tokens).logits.numpy()
        with sharpmax.sharpen(model, calibration):
            wanted = model(tokens).logits.numpy()
    assert np.abs(plain - wanted).max() > 0.01
    sharpmax.fold(model, calibration)

    monkeypatch.chdir(tmp_path)
    names = {"model": model, "torch": torch, "numpy": np, "onnxruntime": onnxruntime}
    exec(compile(example, str(DOCUMENT), "exec"), names)
    assert names["logits"].shape == (1, 5, model.config.vocab_size)
    (found,) = names["session"].run(None, {"input_ids": tokens.numpy()})
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    # The graph has PyTorch's operators alone.
    assert b"sharpmax" not in Path("folded.onnx").read_bytes()
