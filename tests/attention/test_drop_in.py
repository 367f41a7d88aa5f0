"""`sharpmax.attention` takes the place of PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sharpmax
from sharpmax.policies import Constant, Exponential

STOCK = F.scaled_dot_product_attention


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The equivalent code in PyTorch's documentation, with beta = 2 before the softmax."""
    length, keys = query.size(-2), key.size(-2)
    scale_factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    attn_bias = torch.zeros(length, keys, dtype=query.dtype, device=query.device)
    if is_causal:
        temp_mask = torch.ones(length, keys, dtype=torch.bool, device=query.device).tril(diagonal=0)
        attn_bias.masked_fill_(temp_mask.logical_not(), float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_bias = attn_bias.masked_fill(attn_mask.logical_not(), float("-inf"))
        else:
            attn_bias = attn_mask + attn_bias
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    attn_weight = query @ key.transpose(-2, -1) * scale_factor
    attn_weight = torch.softmax(2.0 * (attn_weight + attn_bias), dim=-1)
    return torch.dropout(attn_weight, dropout_p, train=True) @ value


def made(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_the_signature_is_that_of_pytorch() -> None:
    documented_signature = inspect.signature(documented)
    ours = inspect.signature(sharpmax.attention)
    positional = [p for p in ours.parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [
        (p.name, p.default) for p in documented_signature.parameters.values()
    ]
    doc = STOCK.__doc__ or ""
    assert (
        "scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0,\n"
        "        is_causal=False, scale=None, enable_gqa=False) -> Tensor" in doc
    )


BOOLEAN = torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) > 0.4
BOOLEAN[:, 0] = True
BIAS = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(2))
SQUARE = [(2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 4)]
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "plain": (SQUARE, {}),
    "causal": (SQUARE, {"is_causal": True}),
    "causal square": ([(2, 3, 6, 8)] * 3, {"is_causal": True}),
    "boolean mask": (SQUARE, {"attn_mask": BOOLEAN}),
    "bias": (SQUARE, {"attn_mask": BIAS}),
    "bias with -inf": (SQUARE, {"attn_mask": BIAS.masked_fill(~BOOLEAN, -torch.inf)}),
    "scale": (SQUARE, {"scale": 0.3}),
    "no dropout": (SQUARE, {"dropout_p": 0.0}),
    "all dropped": (SQUARE, {"dropout_p": 1.0}),
    "grouped": ([(2, 8, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8)], {"enable_gqa": True}),
    "grouped without batch": ([(4, 5, 8), (2, 6, 8), (2, 6, 8)], {"enable_gqa": True}),
    "grouped, five axes": (
        [(2, 3, 4, 5, 8), (2, 3, 2, 6, 8), (2, 3, 2, 6, 8)],
        {"enable_gqa": True},
    ),
    "two axes": ([(5, 8), (6, 8), (6, 4)], {"attn_mask": BOOLEAN}),
    "three axes": ([(3, 5, 8), (3, 6, 8), (3, 6, 4)], {"attn_mask": BIAS}),
    "five axes": (
        [(2, 2, 3, 5, 8), (2, 2, 3, 6, 8), (2, 2, 3, 6, 4)],
        {"attn_mask": BIAS[None, None]},
    ),
    "five axes, own masks": (
        [(2, 2, 1, 5, 8), (2, 2, 1, 6, 8), (2, 2, 1, 6, 4)],
        {"attn_mask": torch.rand(2, 1, 1, 5, 6, generator=torch.Generator().manual_seed(3))},
    ),
    "one batch of keys": ([(2, 3, 5, 8), (1, 3, 6, 8), (1, 3, 6, 4)], {}),
    "one head of keys": ([(2, 3, 5, 8), (2, 1, 6, 8), (2, 1, 6, 4)], {}),
    "keys without batch": ([(2, 3, 5, 8), (6, 8), (6, 4)], {"is_causal": True}),
    "queries without batch": ([(3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 4)], {}),
}
every_case = pytest.mark.parametrize(("shapes", "options"), CASES.values(), ids=CASES)


@every_case
def test_without_a_policy_it_is_stock(shapes: list[tuple[int, ...]], options: dict) -> None:
    tensors = made(*shapes)
    expected = STOCK(*tensors, **options)
    torch.testing.assert_close(sharpmax.attention(*tensors, **options), expected)
    positional = [
        options.get("attn_mask"), options.get("dropout_p", 0.0), options.get("is_causal", False)
    ]  # fmt: skip
    if not {"scale", "enable_gqa"} & options.keys():
        torch.testing.assert_close(sharpmax.attention(*tensors, *positional), expected)


@every_case
def test_with_a_policy_the_documented_code_is_tempered(
    shapes: list[tuple[int, ...]], options: dict
) -> None:
    tensors = made(*shapes)
    expected = documented(*tensors, **options)
    ours = sharpmax.attention(*tensors, **options, policy=Constant(2.0))
    torch.testing.assert_close(ours, expected)


def test_statistics_have_the_leading_axes_of_the_query() -> None:
    query, key, value = made((2, 4, 3, 5, 8), (2, 4, 3, 6, 8), (2, 4, 3, 6, 8))
    _, statistics = sharpmax.attention(query, key, value, return_statistics=True)
    assert statistics.mass.shape == (2, 4, 3, 5)
    measured = sharpmax.attention_statistics(query, key)
    torch.testing.assert_close(measured.entropy(), statistics.entropy())
    assert sharpmax.attention_statistics(query[0, 0, 0], key[0, 0, 0]).mass.shape == (5,)


def test_dropout_has_the_right_rate_and_mean() -> None:
    query, key = torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 4000, 8)
    value = torch.ones(1, 1, 4000, 1)
    torch.manual_seed(0)
    output = sharpmax.attention(query, key, value, dropout_p=0.25, policy=Constant(2.0))
    assert output.squeeze() == pytest.approx([1.0, 1.0], abs=0.05)
    assert (output != 1).all()


class Documented(nn.Module):
    """The model of PyTorch's documentation, which passes dropout only in training."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=(self.p if self.training else 0.0)
        )


def test_in_an_unmodified_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = made(*SQUARE)
    model = Documented().eval()
    plain = model(*tensors)
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        functools.partial(sharpmax.attention, policy=Exponential(0.5)),
    )
    sharp = model(*tensors)
    torch.testing.assert_close(
        sharp, sharpmax.attention(*tensors, policy=Exponential(0.5), impl="reference")
    )
    assert (sharp - plain).abs().max() > 1e-3


@pytest.mark.parametrize("training", [False, True])
def test_in_pytorchs_encoder_layer(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train(training)
    # PyTorch's fast path for inference does not call the function.
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    x = torch.randn(2, 10, 32, requires_grad=True)
    calls = []

    def gradient() -> tuple[Tensor, Tensor]:
        output = layer(x)
        return output, torch.autograd.grad(output.square().sum(), x)[0]

    def replacement(policy: Any, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(policy)
        return sharpmax.attention(*args, **kwargs, policy=policy)

    stock = gradient()
    monkeypatch.setattr(F, "scaled_dot_product_attention", functools.partial(replacement, None))
    ours = gradient()
    torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", functools.partial(replacement, Exponential(0.5))
    )
    sharp = gradient()
    assert len(calls) == 2
    assert (sharp[0] - stock[0]).abs().max() > 1e-4


def test_under_autocast_dtypes_may_differ() -> None:
    query, key, value = made(*SQUARE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = sharpmax.attention(query, key.bfloat16(), value.bfloat16())
        stock = STOCK(query, key.bfloat16(), value.bfloat16())
    assert ours.dtype == stock.dtype == torch.bfloat16
    torch.testing.assert_close(ours, stock, atol=2e-2, rtol=2e-2)
