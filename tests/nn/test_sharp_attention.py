from __future__ import annotations

import pytest
import torch
from torch import nn

from sharpmax.nn import SharpAttention
from sharpmax.policies import Constant, Exponential

WIDTH, HEADS = 24, 3


def pair(**kwargs) -> tuple[nn.MultiheadAttention, SharpAttention]:
    torch.manual_seed(0)
    stock = nn.MultiheadAttention(WIDTH, HEADS, **kwargs).eval()
    ours = SharpAttention(WIDTH, HEADS, **kwargs).eval()
    ours.load_state_dict(stock.state_dict())
    return stock, ours


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
        {"kdim": 10, "vdim": 14},
    ],
    ids=str,
)
@pytest.mark.parametrize("masks", ["none", "padding", "boolean", "floating", "heads", "both"])
def test_without_a_policy_it_is_pytorchs(kwargs: dict, masks: str) -> None:
    stock, ours = pair(**kwargs)
    batch, queries, keys = 2, 5, 7
    query = torch.randn(queries, batch, WIDTH)
    key = torch.randn(keys, batch, kwargs.get("kdim", WIDTH))
    value = torch.randn(keys, batch, kwargs.get("vdim", WIDTH))
    if kwargs.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    padding = torch.zeros(batch, keys, dtype=torch.bool)
    padding[0, -2:] = True
    mask = torch.triu(torch.ones(queries, keys, dtype=torch.bool), 2)
    call = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "boolean": {"attn_mask": mask},
        "floating": {"attn_mask": torch.randn(queries, keys)},
        "heads": {"attn_mask": torch.randn(batch * HEADS, queries, keys)},
        "both": {"attn_mask": mask, "key_padding_mask": padding},
    }[masks]
    for average in (True, False):
        expected, weights = stock(query, key, value, average_attn_weights=average, **call)
        output, our_weights = ours(query, key, value, average_attn_weights=average, **call)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(our_weights, weights)
    output, nothing = ours(query, key, value, need_weights=False, **call)
    torch.testing.assert_close(output, expected)
    assert nothing is None


def test_a_boolean_and_a_floating_mask_together() -> None:
    _, ours = pair(batch_first=True)
    x = torch.randn(2, 6, WIDTH)
    padding = torch.tensor([[False] * 4 + [True] * 2, [False] * 6])
    added = torch.where(padding, -torch.inf, 0.0)
    bias = torch.randn(6, 6)
    mixed, _ = ours(x, x, x, key_padding_mask=padding, attn_mask=bias)
    floating, _ = ours(x, x, x, key_padding_mask=added, attn_mask=bias)
    torch.testing.assert_close(mixed, floating)


def test_without_a_batch() -> None:
    stock, ours = pair()
    x = torch.randn(5, WIDTH)
    for one, other in zip(stock(x, x, x), ours(x, x, x), strict=True):
        torch.testing.assert_close(other, one)


def test_causal_hint() -> None:
    stock, ours = pair(batch_first=True)
    x = torch.randn(2, 6, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    expected, _ = stock(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    output, _ = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(output, expected)
    with pytest.raises(ValueError, match="attn_mask"):
        ours(x, x, x, is_causal=True)


def test_the_policy_counts_and_is_per_head() -> None:
    stock, ours = pair(batch_first=True)
    x = torch.randn(2, 6, WIDTH)
    ours.policy = Constant([1.0, 10.0, 1.0])
    _, plain = stock(x, x, x, average_attn_weights=False)
    _, sharp = ours(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(sharp[:, [0, 2]], plain[:, [0, 2]])
    assert (sharp[:, 1].amax(-1) > plain[:, 1].amax(-1)).all()


def test_inside_pytorchs_encoder_the_policy_is_not_passed_by() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True).eval()
    x = torch.randn(2, 6, WIDTH)
    with torch.no_grad():
        plain = layer(x)
        sharp = SharpAttention(WIDTH, HEADS, batch_first=True, policy=Constant(100.0))
        sharp.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = sharp.eval()
        assert (layer(x) - plain).abs().max() > 1e-3
        sharp.policy = Constant(1.0)
        torch.testing.assert_close(layer(x), plain)


def test_trains() -> None:
    torch.manual_seed(0)
    layer = SharpAttention(WIDTH, HEADS, dropout=0.1, policy=Exponential(0.5), batch_first=True)
    x = torch.randn(2, 6, WIDTH)
    output, _ = layer(x, x, x)
    output.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
