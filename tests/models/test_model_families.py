"""The common test: what every family of models has to pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

import sharpmax
from model_families import BY_NAME, FAMILIES, GENERATORS, PADDING, Family, result, shared
from model_passages import expected_output, watched
from sharpmax.models._attachment import ATTRIBUTE, STOCK
from sharpmax.models._config import NAME, NAMES
from sharpmax.policies import Exponential, Identity

REFERENCE = 0.5
POLICY = Exponential(REFERENCE)
# Encoders and encoder-decoders count positions from the left, padding included.
PADDED = [
    pytest.param(family, side, id=f"{family}-{side}")
    for family in FAMILIES
    for side in ("left", "right")
    if family.kind == "decoder" or (family.kind in ("encoder", "pair") and side == "right")
]

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(autouse=True)
def _no_gradient(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled("gradient" in request.node.name):
        yield


def implementations(model: PreTrainedModel) -> list[Any]:
    return [
        getattr(getattr(module, "config", None), "_attn_implementation", None)
        for module in model.modules()
    ]


@every_family
def test_identity_is_stock(family: Family) -> None:
    model, inputs = shared(family.name), family.inputs()
    before = result(model, **inputs)
    with sharpmax.sharpen(model, Identity()) as sharpened:
        after = result(model, **inputs)
        assert {row.implementation for row in sharpened.status()} == {STOCK}
    if model.config._attn_implementation == "sdpa":
        assert torch.equal(before, after)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)


@every_family
def test_sharpened_layers_are_what_the_slow_way_gives(family: Family) -> None:
    model, inputs = shared(family.name), family.inputs()
    before = result(model, **inputs)
    with sharpmax.sharpen(model, POLICY) as sharpened, watched() as passages:
        after = result(model, **inputs)
        rows = sharpened.status()
    assert not torch.allclose(before, after, atol=1e-3)
    assert tuple(row.kind for row in rows) == family.kinds
    assert all(row.why_not is None and row.heads == 4 for row in rows)
    assert {row.implementation for row in rows} == {"cpu"}
    assert len(passages) == len(family.kinds)
    for passage in passages:
        torch.testing.assert_close(
            passage.output.double(), expected_output(passage, REFERENCE), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("family", "side"), PADDED)
def test_padding_changes_nothing(family: Family, side: str) -> None:
    model, added = shared(family.name), 3
    inputs = family.inputs()
    tokens = inputs.pop("input_ids")
    length = tokens.shape[1]
    padded = torch.nn.functional.pad(
        tokens, (added, 0) if side == "left" else (0, added), value=PADDING
    )
    mask = (padded != PADDING).long()
    # One row of the batch is full, so that the mask is not the same for all.
    full = torch.cat([padded, torch.full_like(padded[:1], 5)])
    arguments: dict[str, Any] = {"attention_mask": torch.cat([mask, torch.ones_like(mask[:1])])}
    for name, value in inputs.items():
        arguments[name] = torch.cat([value, value[:1]])
    if family.kind == "decoder":
        positions = arguments["attention_mask"].cumsum(-1) - 1
        arguments["position_ids"] = positions.clamp(min=0)
    with sharpmax.sharpen(model, POLICY):
        expected = result(model, input_ids=tokens, **inputs)
        output = result(model, input_ids=full, **arguments)[:-1]
    assert not torch.isnan(output).any()
    if family.kind != "pair":
        start = added if side == "left" else 0
        output = output[:, start : start + length]
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


def stepwise(model: PreTrainedModel, family: Family, cache: Any, steps: tuple[int, int]) -> Tensor:
    """Logits of a prompt at once and of what follows, one or some tokens at a time."""
    inputs, (prompt, step) = family.inputs(), steps
    name = "input_ids" if family.kind == "decoder" else "decoder_input_ids"
    tokens, outputs = inputs.pop(name), []
    for part in (tokens[:, :prompt], *tokens[:, prompt:].split(step, dim=1)):
        output = model(**inputs, **{name: part}, past_key_values=cache, use_cache=True)
        outputs.append(output.logits)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("steps", [(1, 1), (6, 1), (4, 3)], ids=str)
@pytest.mark.parametrize("family", GENERATORS, ids=str)
def test_decoding_with_a_cache_is_the_full_forward(family: Family, steps: tuple[int, int]) -> None:
    model = shared(family.name)
    cache: Any = DynamicCache(config=model.config)
    if family.kind != "decoder":
        cache = EncoderDecoderCache(cache, DynamicCache())
    with sharpmax.sharpen(model, POLICY):
        expected = result(model, **family.inputs())
        output = stepwise(model, family, cache, steps)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [(1, 1), (6, 1), (4, 3)], ids=str)
@pytest.mark.parametrize("family", GENERATORS, ids=str)
def test_decoding_with_a_static_cache_is_the_full_forward(
    family: Family, steps: tuple[int, int]
) -> None:
    model = shared(family.name)
    cache: Any = StaticCache(config=model.config, max_cache_len=20)
    if family.kind != "decoder":
        # As long as what the encoder gives: there is no mask over what was not written.
        inputs = {n: x for n, x in family.inputs().items() if n != "decoder_input_ids"}
        length = model.get_encoder()(**inputs).last_hidden_state.shape[1]
        crossed = StaticCache(config=model.config, max_cache_len=length)
        cache = EncoderDecoderCache(cache, crossed)
    with sharpmax.sharpen(model, POLICY):
        expected = result(model, **family.inputs())
        output = stepwise(model, family, cache, steps)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", GENERATORS, ids=str)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_the_same_with_and_without_a_cache(family: Family, beams: int) -> None:
    model, inputs = shared(family.name), family.inputs(length=7)
    inputs.pop("decoder_input_ids", None)
    if "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    settings: dict[str, Any] = {
        "max_new_tokens": 5, "do_sample": False, "num_beams": beams, "min_new_tokens": 5,
    }  # fmt: skip
    with sharpmax.sharpen(model, POLICY):
        cached = model.generate(**inputs, **settings)
        again = model.generate(**inputs, **settings, use_cache=False)
    assert torch.equal(cached, again)


@every_family
def test_restore_is_exact(family: Family) -> None:
    model, inputs = shared(family.name), family.inputs()
    before, names = result(model, **inputs), implementations(model)
    configuration = copy.deepcopy(model.config.to_dict())
    attributes = [sorted(module.__dict__) for module in model.modules()]
    sharpened = sharpmax.sharpen(model, POLICY)
    assert set(implementations(model)) <= {*NAMES, None}
    sharpened.restore()
    sharpened.restore()
    assert implementations(model) == names
    assert model.config.to_dict() == configuration
    assert [sorted(module.__dict__) for module in model.modules()] == attributes
    assert torch.equal(result(model, **inputs), before)


@every_family
def test_disabled_is_the_model_as_it_was(family: Family) -> None:
    model, inputs = shared(family.name), family.inputs()
    before, names = result(model, **inputs), implementations(model)
    with sharpmax.sharpen(model, POLICY) as sharpened:
        sharp = result(model, **inputs)
        with sharpened.disabled():
            assert implementations(model) == names
            assert torch.equal(result(model, **inputs), before)
        assert torch.equal(result(model, **inputs), sharp)
    assert torch.equal(result(model, **inputs), before)


@every_family
def test_what_is_saved_knows_nothing_of_it(family: Family, tmp_path: Path) -> None:
    model, inputs = shared(family.name), family.inputs()
    before = result(model, **inputs)
    with sharpmax.sharpen(model, POLICY):
        model.save_pretrained(tmp_path)
    texts = [path.read_text("utf-8") for path in tmp_path.glob("*.json")]
    assert texts
    assert not any(NAME in text for text in texts)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.config._attn_implementation == model.config._attn_implementation
    assert torch.equal(result(again, **inputs), before)


@every_family
def test_gradients_are_the_same_under_checkpointing(family: Family) -> None:
    model, inputs = family.build(), family.inputs()
    model.train()
    gradients = []
    with sharpmax.sharpen(model, POLICY):
        for checkpointed in (False, True):
            if checkpointed:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            model.zero_grad()
            result(model, **inputs).square().mean().backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "bert", "t5"])
def test_compiled_as_one_graph(name: str) -> None:
    model, inputs = shared(name), BY_NAME[name].inputs()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with sharpmax.sharpen(model, Exponential([0.5, 0.6, 0.7, 0.8])):
        torch.testing.assert_close(result(compiled, **inputs), result(model, **inputs))


def test_there_is_nothing_left_on_the_shared_models() -> None:
    for name in BY_NAME:
        model = shared(name)
        assert not {*NAMES} & {*implementations(model)}
        assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())
