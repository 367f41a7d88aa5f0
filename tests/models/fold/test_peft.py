from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from torch import nn

import sharpmax
from model_families import BY_NAME, result
from sharpmax.models import Calibration, CannotFoldError, DamagedFileError
from sharpmax.policies import Constant, Exponential

BETAS, GAINS = [1.7, 0.6, 1.0, 1.2], [1.0, 0.5, 1.5, -0.3]


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gpt_neox", "gpt2", "deepseek_v3"])
def test_peft_loads_and_merges_an_adapter(name: str, tmp_path: Path) -> None:
    model, inputs = BY_NAME[name].build(), BY_NAME[name].inputs()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    before = [parameter.clone() for parameter in model.parameters()]
    calibration = Calibration.of(model, {0: Constant(BETAS)}, gains={0: GAINS, 1: GAINS})
    with torch.no_grad(), sharpmax.sharpen(model, calibration):
        sharp = result(model, **inputs)
    assert calibration.to_peft(tmp_path / "ia3", model, inputs=inputs) == tmp_path / "ia3"
    assert all(map(torch.equal, before, model.parameters()))
    again = Calibration.from_peft(tmp_path / "ia3", model)
    assert [layer.index for layer in again.layers] == [0, 1]
    assert again.layers[0].policy is not None
    assert again.layers[0].policy.per_head()["beta"] == pytest.approx(BETAS)
    assert [layer.gain for layer in again.layers] == [pytest.approx(GAINS)] * 2
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "ia3").eval()
    with torch.no_grad():
        torch.testing.assert_close(result(adapted, **inputs), sharp, rtol=1e-4, atol=1e-4)
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(result(merged, **inputs), sharp, rtol=1e-4, atol=1e-4)
    assert "base_model" not in (tmp_path / "ia3/README.md").read_text("utf-8")


def test_what_is_no_projection_is_refused(tmp_path: Path) -> None:
    for name, why in (("olmo2", "q_norm.weight"), ("gpt_oss", "sinks")):
        model, inputs = BY_NAME[name].build(), BY_NAME[name].inputs()
        before = [parameter.clone() for parameter in model.parameters()]
        calibration = Calibration.of(model, {0: Constant(BETAS)})
        with pytest.raises(CannotFoldError, match=f"{why}: expected a projection"):
            calibration.to_peft(tmp_path, model, inputs=inputs)
        assert all(map(torch.equal, before, model.parameters()))
    model = BY_NAME["llama"].build()
    with pytest.raises(CannotFoldError, match="each row its own temperature"):
        Calibration.of(model, {0: Exponential(0.5)}).to_peft(tmp_path, model)
    assert not any(tmp_path.iterdir())


def test_other_adapters_are_refused(tmp_path: Path) -> None:
    model = BY_NAME["llama"].build()
    with pytest.raises(DamagedFileError, match="expected an adapter"):
        Calibration.from_peft(tmp_path, model)
    config = peft.IA3Config(
        target_modules=["q_proj"], feedforward_modules=[], init_ia3_weights=False
    )
    peft.get_peft_model(BY_NAME["llama"].build(), config).save_pretrained(tmp_path)
    with pytest.raises(CannotFoldError, match="factors that differ within a head"):
        Calibration.from_peft(tmp_path, model)
    config = peft.IA3Config(target_modules=["v_proj"], feedforward_modules=[])
    peft.get_peft_model(BY_NAME["llama"].build(), config).save_pretrained(tmp_path)
    with pytest.raises(CannotFoldError, match="v_proj: expected outputs of a query projection"):
        Calibration.from_peft(tmp_path, model)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA"}), encoding="utf-8")
    with pytest.raises(CannotFoldError, match="expected an IA³ adapter, got 'LORA'"):
        Calibration.from_peft(tmp_path, model)
