"""Any PyTorch module: which calls are served, how they are addressed, and what is undone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sharpmax
from sharpmax.models._attachment import ATTRIBUTE
from sharpmax.policies import Constant
from torch_models import HEADS, WIDTH, Attention, Stack, made, tokens

SHARP = Constant(3.0)


def first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2)


MODELS: dict[str, tuple[nn.Module, tuple[Tensor, ...], list[str]]] = {
    "decoder only": (
        Stack(Attention(causal=True), Attention(causal=True)),
        (tokens(),),
        ["blocks.0.attn", "blocks.1.attn"],
    ),
    "set": (Stack(Attention()), (tokens(5), tokens(9)), ["blocks.0.attn"]),
    "shared weights": (
        Stack(Attention(), times=2),
        (tokens(),),
        ["blocks.0.attn", "blocks.0.attn#1"],
    ),
    "multi-head": (
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        (tokens(),) * 3,
        ["MultiheadAttention"],
    ),
    "encoder": (encoder(), (tokens(),), ["layers.0.self_attn", "layers.1.self_attn"]),
    "encoder and decoder": (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True), 1),
        (tokens(6), tokens(9)),
        ["layers.0.self_attn", "layers.0.multihead_attn"],
    ),
}


@pytest.fixture(params=list(MODELS))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    model, inputs, names = MODELS[request.param]
    return made(copy.deepcopy(model)), inputs, names


def test_every_call_is_sharpened_and_restored_exactly(case: Any) -> None:
    model, inputs, names = case
    classes = [type(module) for module in model.modules()]
    with torch.no_grad():
        before = first(model(*inputs))
        with sharpmax.sharpen(model, SHARP) as sharpened:
            assert sharpened.status() == []
            sharp = first(model(*inputs))
            assert (sharp - before).abs().max() > 1e-2
            rows = sharpened.status()
            assert [(row.index, row.name) for row in rows] == list(enumerate(names))
            assert {(row.heads, row.policy, row.why_not) for row in rows} == {(HEADS, SHARP, None)}
            assert torch.equal(first(model(*inputs)), sharp)
            with sharpened.disabled():
                assert torch.equal(first(model(*inputs)), before)
            assert torch.equal(first(model(*inputs)), sharp)
        assert torch.equal(first(model(*inputs)), before)
        with sharpmax.sharpen(model, Constant(1.0)):
            # Also where PyTorch's own fused layers would be faster.
            torch.testing.assert_close(first(model(*inputs)), before)
    assert [type(module) for module in model.modules()] == classes
    assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())


def test_compiled_as_one_graph(case: Any) -> None:
    model, inputs, names = case
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        before = first(compiled(*inputs))
        with sharpmax.sharpen(model, SHARP) as sharpened:
            sharp = first(compiled(*inputs))
            assert [row.name for row in sharpened.status()] == names
            torch.testing.assert_close(first(model(*inputs)), sharp)
        assert torch.equal(first(compiled(*inputs)), before)
    assert (sharp - before).abs().max() > 1e-2
