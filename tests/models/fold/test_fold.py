from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import sharpmax
from model_families import BY_NAME, FAMILIES, TINY, Family, result, shared
from sharpmax.models import Calibration, CannotFoldError, CannotSharpenError, LayerCalibration
from sharpmax.models._fold import fold as folding
from sharpmax.policies import Constant, Exponential
from torch_models import Stack

BETAS, GAINS = [1.7, 0.6, 1.0, 1.2], [1.0, 0.5, 1.5, -0.3]

REFUSED = {
    "qwen3": "q_norm treats the queries of all heads alike; gains can be folded",
    "gemma3": "q_norm treats the queries of all heads alike; gains can be folded",
    "glm4-moe": "q_norm treats the queries of all heads alike; gains can be folded",
    "llama4": "qk_norm treats the queries of all heads alike; gains can be folded",
    "gemma2": "its soft cap acts before the temperature; gains can be folded",
    "t5": "its position bias is not scaled with the queries; gains can be folded",
}
"""The families whose temperatures cannot be folded. All other families have to fold."""

# What differs within a family, or has no tiny model of its own in the common tests.
VARIANTS = [
    Family("cohere-norm", "CohereForCausalLM", "CohereConfig",
           {**BY_NAME["cohere"].settings, "use_qk_norm": True}),
    Family("deepseek-without-lora", "DeepseekV3ForCausalLM", "DeepseekV3Config",
           {**BY_NAME["deepseek_v3"].settings, "q_lora_rank": None}),
    Family("glm4", "Glm4ForCausalLM", "Glm4Config",
           {**BY_NAME["llama"].settings, "head_dim": 8}),
    Family("glm4-moe", "Glm4MoeForCausalLM", "Glm4MoeConfig",
           {**BY_NAME["llama"].settings, "head_dim": 8, "use_qk_norm": True,
            "moe_intermediate_size": 16, "n_routed_experts": 4, "first_k_dense_replace": 2}),
]  # fmt: skip


def everything(model: hf.PreTrainedModel, layers: int) -> Calibration:
    return Calibration.of(
        model,
        {i: Constant(BETAS) for i in range(layers)},
        gains=dict.fromkeys(range(layers), GAINS),
    )


@pytest.mark.parametrize("family", [*FAMILIES, *VARIANTS], ids=str)
def test_every_family_is_folded_or_refused_by_name(family: Family, tmp_path: Path) -> None:
    model, inputs = family.build(), family.inputs()
    # Projections with biases start at zero, which would hide a bias that was forgotten.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    before = [parameter.clone() for parameter in model.parameters()]
    calibration = everything(model, len(family.kinds))
    with torch.no_grad(), sharpmax.sharpen(model, calibration):
        sharp = result(model, **inputs)
    if why := REFUSED.get(family.name):
        with pytest.raises(CannotFoldError, match=why):
            sharpmax.fold(model, calibration, inputs=inputs)
        assert all(map(torch.equal, before, model.parameters()))
    report = sharpmax.fold(model, calibration, inputs=inputs, partial=True)
    assert report.difference <= report.tolerance < 1e-4 < report.effect
    assert {each.index for each in report.folded if each.what == "gain"} == {
        *range(len(family.kinds))
    }
    model.save_pretrained(tmp_path)
    assert "sharpmax" not in (tmp_path / "config.json").read_text("utf-8")
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(result(again, **inputs), result(model, **inputs))
        if why:
            # What is left can still be applied, on top of what was folded.
            assert report.rest is not None
            with sharpmax.sharpen(again, report.rest):
                output = result(again, **inputs)
        else:
            assert report.rest is None
            output = result(again, **inputs)
    torch.testing.assert_close(output, sharp, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precisions(dtype: torch.dtype) -> None:
    model = BY_NAME["qwen2"].build().to(dtype)
    report = sharpmax.fold(model, everything(model, 2), inputs=BY_NAME["qwen2"].inputs())
    assert report.difference <= report.tolerance
    assert report.tolerance > 1e-3 if dtype == torch.bfloat16 else report.tolerance < 1e-5
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (hf.FalconConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16), "Falcon"),
        (hf.BloomConfig(n_layer=1, n_head=2, hidden_size=16), "Bloom"),
    ],
    ids=["falcon", "bloom"],
)
def test_families_that_cannot_be_sharpened_are_refused_by_name(
    config: hf.PreTrainedConfig, why: str
) -> None:
    config.vocab_size = 32
    model = hf.AutoModelForCausalLM.from_config(config)
    calibration = Calibration("", config.model_type, (2,), (LayerCalibration(0, gain=(2.0, 1.0)),))
    with pytest.raises(CannotSharpenError, match=f"{why}Attention does not use transformers"):
        sharpmax.fold(model, calibration)


def test_sinks_that_stand_apart() -> None:
    model, inputs = BY_NAME["gpt_oss"].build(), BY_NAME["gpt_oss"].inputs()
    calibration = Calibration.of(model, {0: Constant(BETAS)})
    with torch.no_grad(), sharpmax.sharpen(model, calibration, sink_role="apart"):
        sharp = result(model, **inputs)
    report = sharpmax.fold(model, calibration, inputs=inputs, sink_role="apart")
    assert not any("sinks" in name for name in report.folded[0].parameters)
    with torch.no_grad():
        torch.testing.assert_close(result(model, **inputs), sharp, rtol=1e-4, atol=1e-4)


def test_rows_are_refused_and_gains_folded() -> None:
    model = BY_NAME["llama"].build()
    calibration = Calibration.of(model, {0: Exponential(0.5)}, gains={0: GAINS})
    with pytest.raises(CannotFoldError, match="Exponential gives each row its own temperature"):
        sharpmax.fold(model, calibration)
    report = sharpmax.fold(model, calibration, partial=True)
    assert report.rest is not None
    assert [layer.policy for layer in report.rest.layers] == [Exponential(0.5)]
    assert "not folded: 4 temperatures of layer 0" in report.summary()
    assert "Not folded" in report.card()


@pytest.mark.parametrize(
    ("part", "factor"), [("betas", 1.03), ("gains", 1.03), ("layout", 1.0)], ids=str
)
def test_a_wrong_fold_is_refused_and_undone(
    part: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = BY_NAME["gpt_neox"].build()
    before = [parameter.clone() for parameter in model.parameters()]
    apply = folding.Scaling.apply

    def wrong(scaling: Any) -> Tensor:
        is_query = "query" in scaling.name
        if part == "layout" and is_query:
            # As if queries, keys and values were stacked.
            object.__setattr__(scaling, "factors", scaling.factors.sort(0, descending=True).values)
        elif is_query == (part == "betas"):
            scaling.factors.mul_(factor)
        return apply(scaling)

    monkeypatch.setattr(folding.Scaling, "apply", wrong)
    with pytest.raises(CannotFoldError, match="of the sharpened model and"):
        sharpmax.fold(model, everything(model, 2))
    assert all(map(torch.equal, before, model.parameters()))


def test_weights_that_cannot_be_multiplied() -> None:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**TINY))
    attention = model.model.layers
    calibration = Calibration.of(model, {1: Constant([2.0, 1.0])})
    attention[1].self_attn.q_proj.weight = attention[0].self_attn.q_proj.weight
    with pytest.raises(CannotFoldError, match="is shared with another layer"):
        sharpmax.fold(model, calibration)
    attention[1].self_attn.q_proj = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(
        CannotFoldError, match="is a Sequential, not a plain projection; fold before"
    ):
        sharpmax.fold(model, calibration)


def test_models_and_calibrations_that_do_not_fit() -> None:
    model = shared("llama")
    with pytest.raises(CannotFoldError, match="the calibration changes nothing"):
        sharpmax.fold(model, Calibration.of(model, {}))
    calibration = Calibration.of(model, {0: Constant(2.0)})
    with (
        sharpmax.sharpen(model, Constant(2.0)),
        pytest.raises(CannotSharpenError, match="already sharpened"),
    ):
        sharpmax.fold(model, calibration)
    with pytest.raises(CannotFoldError, match="expected a transformers model"):
        sharpmax.fold(Stack(), calibration)
    with pytest.raises(ValueError, match="inputs: expected arguments of ViTModel"):
        sharpmax.fold(shared("vit"), Calibration.of(shared("vit"), {0: Constant(2.0)}))
