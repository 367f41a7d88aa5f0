"""Sharpening: what can be asked for, what is refused, and what models do then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from transformers import CompileConfig, PreTrainedModel

import sharpmax
from model_families import BY_NAME, indexed, result, shared
from sharpmax.models import CannotSharpenError
from sharpmax.models._config import NAME
from sharpmax.policies import Constant, EntropyTarget, Exponential, Hard, Identity

LLAMA = BY_NAME["llama"]
POLICY = Exponential(0.5)


def fresh(**settings: Any) -> PreTrainedModel:
    return LLAMA.build(**settings)


def answer(model: PreTrainedModel, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return result(model, **LLAMA.inputs(), **options)


@pytest.mark.parametrize("impl", ["composed", "reference"])
def test_the_implementation_that_was_asked_for(impl: Any) -> None:
    model = fresh()
    with sharpmax.sharpen(model, POLICY):
        expected = answer(model)
    with sharpmax.sharpen(model, POLICY, impl=impl) as sharpened:
        torch.testing.assert_close(answer(model), expected, rtol=1e-4, atol=1e-4)
        assert {row.implementation for row in sharpened.status()} == {impl}
    refused = pytest.raises(NotImplementedError, match="impl='composed'")
    with sharpmax.sharpen(model, Hard(), impl="composed"), refused:
        answer(model)


@pytest.mark.parametrize("policy", [POLICY, Hard(), EntropyTarget(0.5)], ids=repr)
def test_heads_that_are_not_chosen_are_left_alone(policy: Any) -> None:
    model, inputs = fresh(num_hidden_layers=1), LLAMA.inputs()
    outputs: list[torch.Tensor] = []
    layer = model.model.layers[0].self_attn
    layer.o_proj.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    result(model, **inputs)
    with sharpmax.sharpen(model, policy, heads=[2]):
        result(model, **inputs)
    with sharpmax.sharpen(model, policy):
        result(model, **inputs)
    before, some, every = (x.unflatten(-1, (4, -1)) for x in outputs)
    torch.testing.assert_close(some[..., [0, 1, 3], :], before[..., [0, 1, 3], :])
    assert torch.equal(some[..., 2, :], every[..., 2, :])
    assert not torch.allclose(every, before, atol=1e-3)


def test_a_model_is_sharpened_once() -> None:
    model = fresh()
    with sharpmax.sharpen(model, POLICY):
        for each in (model, model.model):
            with pytest.raises(CannotSharpenError, match="is already sharpened"):
                sharpmax.sharpen(each, POLICY)
    sharpmax.sharpen(model.model, POLICY).restore()


def test_models_that_cannot_be_sharpened_are_refused() -> None:
    mamba = hf.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    bloom = hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)
    for model, said in [
        (hf.MambaModel(mamba), "MambaModel: expected a model with attention layers, found none"),
        (hf.BloomModel(bloom), "BloomModel: no attention layer can be reached.*BloomAttention"),
        (indexed(), r"layers.0.self_attn restricts its attention to chosen keys \(indices=\)"),
    ]:
        with pytest.raises(CannotSharpenError, match=said):
            sharpmax.sharpen(model, POLICY)
    with pytest.raises(CannotSharpenError, match="Linear: expected a model with attention"):
        sharpmax.sharpen(torch.nn.Linear(2, 2), POLICY)
    wrong: Any = "model"
    with pytest.raises(TypeError, match=r"model: expected a torch.nn.Module, got str"):
        sharpmax.sharpen(wrong, POLICY)
    with pytest.raises(
        CannotSharpenError, match="expected layers and heads that exist in this model, got none"
    ):
        sharpmax.sharpen(shared("llama"), POLICY, layers="sliding")


def test_a_model_that_calls_the_attention_of_pytorch_is_reached_with_an_example() -> None:
    config = hf.FalconConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False,
        new_decoder_architecture=False, multi_query=True, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.FalconForCausalLM(config).eval()
    inputs = {"input_ids": torch.randint(32, (1, 9))}
    with torch.no_grad():
        before = model(**inputs).logits
        with sharpmax.sharpen(model, Constant(1.5), example=inputs) as sharpened:
            sharp = model(**inputs).logits
        names = [row.name for row in sharpened.status()]
        assert names == [f"transformer.h.{layer}.self_attention" for layer in range(2)]
        torch.testing.assert_close(model(**inputs).logits, before)
        assert (sharp - before).abs().max() > 1e-2
        for block in model.transformer.h:
            block.self_attention.query_key_value.weight[:32] *= 1.5
        torch.testing.assert_close(model(**inputs).logits, sharp, rtol=1e-4, atol=1e-4)
    bloom = hf.BloomModel(hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(CannotSharpenError):
        sharpmax.sharpen(bloom, Constant(1.5), example=inputs)


def test_a_module_around_a_model() -> None:
    model = fresh()
    with sharpmax.sharpen(torch.nn.Sequential(model), POLICY) as sharpened:
        assert sharpened.model is model
        assert model.config._attn_implementation == NAME


def test_masks_that_a_caller_made() -> None:
    model, length = fresh(), 11
    visible = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    lowest = torch.finfo(torch.float32).min
    with sharpmax.sharpen(model, POLICY):
        expected = answer(model)
        for mask in (
            visible,
            torch.zeros(1, 1, length, length).masked_fill(~visible, -torch.inf),
            torch.zeros(1, 1, length, length).masked_fill(~visible, lowest),
        ):
            torch.testing.assert_close(answer(model, attention_mask=mask), expected)


def test_packed_sequences_stay_apart() -> None:
    model, tokens = fresh(), LLAMA.inputs(batch=1)["input_ids"]
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad(), sharpmax.sharpen(model, POLICY):
        packed = result(model, input_ids=tokens, position_ids=positions, use_cache=False)
        apart = [result(model, input_ids=part) for part in (tokens[:, :5], tokens[:, 5:])]
    torch.testing.assert_close(packed, torch.cat(apart, dim=1), rtol=1e-4, atol=1e-4)


def test_weights_are_none() -> None:
    model = fresh()
    with sharpmax.sharpen(model, POLICY), pytest.warns(UserWarning, match="models.record"):
        output = model(**LLAMA.inputs(), output_attentions=True)
    assert output.attentions is None or not any(torch.is_tensor(x) for x in output.attentions)


def test_parameters_of_a_policy_learn() -> None:
    model = fresh()
    reference = torch.full((4,), 0.5, requires_grad=True)
    gradients = []
    for detached in (False, True):
        with sharpmax.sharpen(model, Exponential(reference), detach_temperature=detached):
            model.zero_grad()
            result(model, **LLAMA.inputs()).square().mean().backward()
        gradients.append(model.model.embed_tokens.weight.grad.clone())
        if not detached:
            assert (reference.grad != 0).all()
            reference.grad = None
    assert reference.grad is None or (reference.grad == 0).all()
    assert not torch.allclose(*gradients)


def test_training_with_dropout() -> None:
    model = fresh(attention_dropout=0.5).train()
    with sharpmax.sharpen(model, POLICY) as sharpened:
        first, second = (result(model, **LLAMA.inputs()) for _ in range(2))
        assert not torch.equal(first, second)
        first.sum().backward()
        assert {row.implementation for row in sharpened.status()} == {"reference"}
        model.eval()
        assert torch.equal(answer(model), answer(model))


def test_half_precision() -> None:
    model = fresh().to(torch.bfloat16)
    tokens = torch.nn.functional.pad(LLAMA.inputs()["input_ids"], (2, 0), value=1)
    with torch.no_grad(), sharpmax.sharpen(model, POLICY):
        output = result(model, input_ids=tokens, attention_mask=(tokens != 1).long())
    assert output.dtype == torch.bfloat16
    assert torch.isfinite(output).all()


def test_generation_that_compiles_itself() -> None:
    model, inputs = fresh(), LLAMA.inputs(length=6)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    settings: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    torch.compiler.reset()
    compilation = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    compilation._compile_all_devices = True
    with sharpmax.sharpen(model, POLICY):
        expected = model.generate(**inputs, **settings)
        compiled = model.generate(
            **inputs, **settings, cache_implementation="static", compile_config=compilation
        )
    assert torch.equal(compiled, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_identity_and_none_ask_for_nothing() -> None:
    model = fresh()
    for policy in (Identity(), {0: None}, {}):
        with sharpmax.sharpen(model, policy) as sharpened:
            assert {row.why_not for row in sharpened.status()} == {"no policy"}
