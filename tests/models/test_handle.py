"""The handle: what it changes, tells and undoes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedModel

import sharpmax
from model_families import BY_NAME, TINY, result
from sharpmax.models import CannotSharpenError
from sharpmax.models._attachment import ATTRIBUTE, STOCK
from sharpmax.models._config import MASKED, NAME
from sharpmax.models._handle import NOT_CALLED, Sharpened, neutral_rules
from sharpmax.policies import Exponential, Hard, Identity, Paper

LLAMA = BY_NAME["llama"]
POLICY = Exponential(0.5)


def fresh(**settings: Any) -> PreTrainedModel:
    return LLAMA.build(**settings)


def answer(model: PreTrainedModel, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return result(model, **LLAMA.inputs(), **options)


def test_the_status_tells_what_happens() -> None:
    model = fresh()
    sharpened = sharpmax.sharpen(model, {1: POLICY})
    left_alone, sharp = sharpened.status()
    assert (left_alone.implementation, left_alone.why_not) == (STOCK, "no policy")
    assert (sharp.implementation, sharp.why_not, sharp.policy) == (NOT_CALLED, None, POLICY)
    assert repr(sharpened) == "Sharpened(LlamaForCausalLM: 1 of 2 attention layers)"
    answer(model)
    assert sharpened.status()[1].implementation == "cpu"
    model.set_attn_implementation("eager")
    assert sharpened.status()[1].why_not == "its configuration says 'eager', not 'sharpmax'"
    sharpened.restore()
    assert {row.why_not for row in sharpened.status()} == {"restored"}
    assert {row.implementation for row in sharpened.status()} == {"sdpa"}
    assert sharpened.active is False


def test_what_a_model_does_to_its_own_temperature_is_noted() -> None:
    model = BY_NAME["llama4"].build()
    said = ("llama4_text: attn_temperature_tuning scales queries with their position",)
    with sharpmax.sharpen(model, POLICY) as sharpened:
        assert sharpened.notes == said
    diagnosis = sharpmax.diagnose(model, torch.arange(4, 44), [10, 40])
    assert diagnosis.notes == said
    assert f"note: {said[0]}" in diagnosis.summary()
    assert sharpmax.sharpen(fresh(), POLICY).notes == ()


def test_several_models_at_once_even_with_one_configuration() -> None:
    first = fresh()
    second = hf.LlamaForCausalLM(first.config).eval()
    second.load_state_dict(first.state_dict())
    third = fresh()
    before = answer(first)
    assert second.config is first.config
    one = sharpmax.sharpen(first, POLICY)
    assert torch.equal(answer(second), before)
    two = sharpmax.sharpen(second, Exponential(1.0))
    three = sharpmax.sharpen(third, Hard())
    sharp = [answer(model) for model in (first, second, third)]
    assert len({tuple(x.flatten().tolist()) for x in (before, *sharp)}) == 4
    one.restore()
    assert torch.equal(answer(first), before)
    assert torch.equal(answer(second), sharp[1])
    with two.disabled():
        assert first.config._attn_implementation == "sdpa"
    assert torch.equal(answer(second), sharp[1])
    two.restore()
    assert first.config._attn_implementation == "sdpa"
    assert torch.equal(answer(third), sharp[2])
    three.restore()
    assert torch.equal(answer(second), before)


def test_an_exception_restores_too() -> None:
    model = fresh()
    before = answer(model)
    with pytest.raises(KeyboardInterrupt), sharpmax.sharpen(model, POLICY):
        raise KeyboardInterrupt
    assert torch.equal(answer(model), before)
    with sharpmax.sharpen(model, POLICY) as sharpened:
        with pytest.raises(RuntimeError), sharpened.disabled():
            raise RuntimeError
        assert sharpened.active
    assert model.config._attn_implementation == "sdpa"


def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()

    def broken(_: str) -> None:
        model.config._attn_implementation = NAME
        raise OSError("broken")

    monkeypatch.setattr(model, "set_attn_implementation", broken)
    with pytest.raises(OSError, match="broken"):
        sharpmax.sharpen(model, POLICY)
    assert model.config._attn_implementation == "sdpa"
    assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())


def test_neutral_rules_compute_the_original_model_without_detaching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = fresh()
    before = answer(model)
    with sharpmax.sharpen(model, POLICY) as sharpened:
        sharp = answer(model)

        def refuse(_: object) -> None:
            raise AssertionError("attached again")

        monkeypatch.setattr(Sharpened, "resume", refuse)
        with neutral_rules(sharpened):
            assert sharpened.active
            assert torch.equal(answer(model), before)
        assert torch.equal(answer(model), sharp)
        with pytest.raises(RuntimeError), neutral_rules(sharpened):
            raise RuntimeError
        assert torch.equal(answer(model), sharp)


def test_disabled_after_restore_stays_restored() -> None:
    model = fresh()
    sharpened = sharpmax.sharpen(model, POLICY)
    sharpened.restore()
    with sharpened.disabled():
        pass
    assert not sharpened.active
    assert model.config._attn_implementation == "sdpa"


def test_disabled_gives_way_to_nobody() -> None:
    model = fresh()
    sharpened = sharpmax.sharpen(model, POLICY)
    with pytest.raises(CannotSharpenError, match="is already sharpened"), sharpened.disabled():
        other = sharpmax.sharpen(model, Hard())
    assert not sharpened.active
    assert [row.policy for row in other.status()] == [Hard(), Hard()]
    sharpened.restore()
    assert other.active
    other.restore()
    assert model.config._attn_implementation == "sdpa"


def test_nothing_changed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    monkeypatch.setattr(model, "set_attn_implementation", lambda _: None)
    with pytest.raises(
        CannotSharpenError, match=r"nothing was changed\. model.layers.0.self_attn: its"
    ):
        sharpmax.sharpen(model, POLICY)
    assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())


def test_a_layer_that_was_missed_is_told() -> None:
    model = fresh()
    # A copy that transformers does not know of.
    model.model.layers[1].self_attn.config = copy.deepcopy(model.config)
    with pytest.warns(UserWarning, match=r"not sharpened: model.layers.1.self_attn: its config"):
        sharpened = sharpmax.sharpen(model, POLICY)
    assert [row.why_not is None for row in sharpened.status()] == [True, False]
    sharpened.restore()
    # Nothing is missed where nothing was asked for.
    sharpmax.sharpen(model, POLICY, layers=0).restore()


def test_a_layer_that_cannot_be_reached_is_told() -> None:
    model = BY_NAME["siglip"].build(vision_use_head=True)
    with pytest.warns(UserWarning, match=r"not sharpened: head.attention: MultiheadAttention"):
        sharpened = sharpmax.sharpen(model, POLICY)
    row = sharpened.status()[-1]
    assert row.why_not is not None
    assert (row.policy, row.heads) == (None, 4)
    sharpened.restore()
    with sharpmax.sharpen(model, POLICY, layers="encoder"):
        pass


def test_a_model_of_several_parts() -> None:
    vision = hf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        image_size=8, patch_size=4,
    )  # fmt: skip
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**TINY), vision_config=vision, image_token_index=5,
        vision_feature_layer=-1,
    )  # fmt: skip
    model = hf.LlavaForConditionalGeneration(config).eval()
    model.set_attn_implementation({"vision_config": "eager", "text_config": "sdpa"})
    parts = [model.config, model.config.text_config, model.config.vision_config]
    names = [part._attn_implementation for part in parts]
    pixels, tokens = torch.randn(1, 3, 8, 8), torch.tensor([[5, 5, 5, 5, 1, 2, 3]])

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=tokens, pixel_values=pixels).logits

    before = logits()
    with sharpmax.sharpen(model, POLICY, layers="global") as sharpened:
        assert not torch.equal(logits(), before)
        rows = sharpened.status()
        assert [row.kind for row in rows] == ["encoder", "encoder", "global", "global"]
        assert [row.why_not for row in rows] == ["no policy"] * 2 + [None] * 2
        assert [part._attn_implementation for part in parts] == [NAME, NAME, MASKED]
    assert [part._attn_implementation for part in parts] == names
    assert torch.equal(logits(), before)


def test_a_model_that_is_eager_keeps_all_in_its_masks() -> None:
    model = fresh()
    with sharpmax.sharpen(model, POLICY):
        expected = answer(model)
    model.set_attn_implementation("eager")
    before = answer(model)
    for layer in model.model.layers:
        # Some models that know eager attention alone do not say whether they are causal.
        layer.self_attn.is_causal = False
    with sharpmax.sharpen(model, POLICY) as sharpened:
        assert model.config._attn_implementation == MASKED
        torch.testing.assert_close(answer(model), expected, rtol=1e-4, atol=1e-4)
        with sharpened.disabled():
            assert torch.equal(answer(model), before)
    with sharpmax.sharpen(model, Identity()):
        torch.testing.assert_close(answer(model), before, rtol=1e-4, atol=1e-4)
    assert model.config._attn_implementation == "eager"


def test_a_compiled_model_follows() -> None:
    model = fresh()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    before = answer(model)
    assert torch.equal(answer(compiled), before)
    for policy in (POLICY, Exponential(1.0), Paper()):
        with sharpmax.sharpen(model, policy) as sharpened:
            expected = answer(model)
            assert not torch.equal(expected, before)
            torch.testing.assert_close(answer(compiled), expected)
            with sharpened.disabled():
                assert torch.equal(answer(compiled), before)
    assert torch.equal(answer(compiled), before)


class Mesh:
    """What is asked of a mesh of devices, for one rank."""

    mesh_dim_names = ("tp",)

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def get_local_rank(self) -> int:
        return self._rank


@pytest.mark.parametrize("rank", [0, 1])
def test_heads_of_a_rank(rank: int) -> None:
    model = fresh(num_hidden_layers=1)
    layer = model.model.layers[0].self_attn
    policy = Exponential([0.1, 0.5, 0.9, 1.3])
    outputs: list[torch.Tensor] = []
    layer.o_proj.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    with sharpmax.sharpen(model, policy):
        answer(model)
    # The same layer with the heads of one rank alone: two of four, and one key head of two.
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        half = projection.out_features // 2
        projection.weight = torch.nn.Parameter(projection.weight[rank * half : (rank + 1) * half])
    layer.o_proj.weight = torch.nn.Parameter(layer.o_proj.weight[:, :16])
    model._device_mesh = Mesh(2, rank)
    with sharpmax.sharpen(model, policy):
        answer(model)
    whole, part = outputs
    torch.testing.assert_close(part, whole[..., 16 * rank : 16 * (rank + 1)])
