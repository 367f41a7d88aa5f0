from __future__ import annotations

import pytest
import transformers as hf

from model_families import BY_NAME, FAMILIES, TINY, Family, indexed, shared
from sharpmax.models._inspect import (
    CannotSharpenError,
    attention_layers,
    check_reachable,
    configs,
    own_temperatures,
)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_layers_of_every_family(family: Family) -> None:
    layers = attention_layers(shared(family.name))
    assert tuple(layer.kind for layer in layers) == family.kinds
    assert [layer.index for layer in layers] == list(range(len(layers)))
    assert all(layer.unreachable is None and layer.heads == 4 for layer in layers)
    check_reachable(shared(family.name), layers)


def test_a_layer_that_computes_its_attention_itself_cannot_be_reached() -> None:
    *layers, pooling = attention_layers(BY_NAME["siglip"].build(vision_use_head=True))
    assert all(layer.unreachable is None for layer in layers)
    assert pooling.name == "head.attention"
    assert pooling.unreachable is not None
    assert (
        "MultiheadAttention does not use transformers' attention interface" in pooling.unreachable
    )


def test_a_layer_that_has_its_own_attention_under_the_same_name_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = hf.AttentionInterface()
    own["sdpa"] = lambda *_: None
    monkeypatch.setattr("transformers.models.llama.modeling_llama.ALL_ATTENTION_FUNCTIONS", own)
    layers = attention_layers(shared("llama"))
    assert all("replaces PyTorch's attention" in str(layer.unreachable) for layer in layers)


def test_a_layer_without_a_configuration_cannot_be_reached() -> None:
    model = BY_NAME["llama"].build()
    del model.model.layers[1].self_attn.config
    first, second = attention_layers(model)
    assert first.unreachable is None
    assert second.unreachable == "LlamaAttention has no configuration that names its attention"


def test_layers_that_differ_and_submodules_of_layers() -> None:
    config = hf.Gemma4TextConfig(
        **TINY, hidden_size_per_layer_input=8, vocab_size_per_layer_input=32, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    layers = attention_layers(hf.Gemma4ForCausalLM(config))
    assert [layer.kind for layer in layers] == ["sliding", "global"]
    neomme = hf.AutoModel.from_config(hf.AutoConfig.for_model("neomme", **TINY))
    # A submodule of each layer is called an attention as well.
    assert [layer.unreachable for layer in attention_layers(neomme)] == [None, None]


def test_layers_that_choose_their_keys_are_found() -> None:
    model = indexed()
    with pytest.raises(CannotSharpenError, match=r"layers.0.self_attn .* keys \(indices=\)"):
        check_reachable(model, attention_layers(model))


def test_every_configuration_is_found_once() -> None:
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**TINY),
        vision_config=hf.CLIPVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            image_size=8, patch_size=4,
        ),
    )  # fmt: skip
    found = configs(hf.LlavaForConditionalGeneration(config))
    assert {type(each).__name__ for each in found} == {
        "LlavaConfig", "LlamaConfig", "CLIPVisionConfig",
    }  # fmt: skip
    assert len({id(each) for each in found}) == len(found)


def test_temperatures_of_their_own_are_told() -> None:
    assert own_temperatures(shared("llama")) == ()
    (llama4,) = own_temperatures(shared("llama4"))
    assert "attn_temperature_tuning" in llama4
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
            "original_max_position_embeddings": 16}  # fmt: skip
    model = BY_NAME["llama"].build(rope_parameters=yarn, max_position_embeddings=64)
    assert own_temperatures(model) == ("llama: yarn scales the logits of extended contexts",)
    ministral = hf.Ministral3ForCausalLM(hf.Ministral3Config(**TINY))
    assert any("llama_4_scaling_beta" in note for note in own_temperatures(ministral))
    beam = hf.BeamConfig(
        **TINY, head_dim=8, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2,
        n_group=2, topk_group=1, mlp_layer_types=["dense", "dense"],
    )  # fmt: skip
    assert own_temperatures(hf.BeamForCausalLM(beam)) == (
        "beam: layers without rotary positions scale queries with their position",
    )


@pytest.mark.parametrize("floor", [None, 16])
def test_a_temperature_that_begins_at_a_length_is_told(floor: int | None) -> None:
    config = hf.InklingTextConfig(
        **TINY, log_scaling_n_floor=floor, head_dim=8, swa_head_dim=8, d_rel=4, rel_extent=8,
        swa_num_attention_heads=2, swa_num_key_value_heads=2, mlp_layer_types=["dense", "dense"],
        dense_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=8,
    )  # fmt: skip
    model = hf.InklingTextModel(config)
    said = "inkling_text: log_scaling_n_floor scales queries with their position"
    assert own_temperatures(model) == (() if floor is None else (said,))
