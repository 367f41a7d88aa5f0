"""Attention with a normaliser in the place of softmax: the same laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sharpmax
from sharpmax import policies
from sharpmax.nn import SharpAttention
from sharpmax.normalisers import (
    ASEntmax,
    Differential,
    Discontinuous,
    Entmax,
    Hard,
    Linear,
    Local,
    LogLength,
    Normaliser,
    OffByOne,
    Selective,
    Sigmoid,
    Softmax,
    Sparsemax,
    SSMax,
    StickBreaking,
    TopK,
)
from sharpmax.policies import Exponential, Identity

HEADS, WIDTH, KEYS = 4, 8, 9

MADE: list[Callable[[], Normaliser]] = [
    Softmax,
    lambda: Softmax(Exponential(1.0)),
    lambda: SSMax(HEADS),
    lambda: LogLength(4),
    Entmax,
    Sparsemax,
    lambda: ASEntmax(HEADS, WIDTH),
    lambda: Sigmoid(HEADS),
    lambda: Linear(HEADS),
    lambda: Linear(normalise=True),
    StickBreaking,
    lambda: Selective(HEADS, WIDTH, generator=torch.Generator().manual_seed(0)),
    lambda: Differential(HEADS // 2),
    lambda: TopK(3),
    lambda: Local(3),
    OffByOne,
    Hard,
    lambda: Discontinuous(HEADS, WIDTH, generator=torch.Generator().manual_seed(0)),
]
every_normaliser = pytest.mark.parametrize("make", MADE, ids=lambda make: repr(make()).strip())
of_logits = pytest.mark.parametrize(
    "make",
    [make for make in MADE if type(make()).forward is Normaliser.forward],
    ids=lambda make: repr(make()).strip(),
)
of_more = pytest.mark.parametrize(
    "make",
    [make for make in MADE if type(make()).forward is not Normaliser.forward],
    ids=lambda make: repr(make()).strip(),
)


def tensors(normaliser: Normaliser, queries: int = KEYS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(2, HEADS, queries, WIDTH, generator=generator),
        torch.randn(2, HEADS, KEYS, WIDTH, generator=generator),
        torch.randn(2, HEADS // normaliser.maps, KEYS, 5, generator=generator),
    )


@every_normaliser
def test_is_weights_times_values(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    some = torch.rand(KEYS, KEYS, generator=torch.Generator().manual_seed(2)) < 0.8
    visible = causal & some
    expected = normaliser(query, key, scale=WIDTH**-0.5, visible=visible) @ value
    # The same visibility, said in four ways.
    for options in (
        {"attn_mask": visible},
        {"attn_mask": some, "is_causal": True},
        {"attn_mask": torch.zeros(KEYS, KEYS).masked_fill(~visible, -torch.inf)},
        {
            "attn_mask": torch.zeros(KEYS, KEYS).masked_fill(
                ~visible, torch.finfo(torch.float32).min
            )
        },
    ):
        ours = sharpmax.attention(query, key, value, normaliser=normaliser, **options)
        torch.testing.assert_close(ours, expected)


@every_normaliser
def test_window_and_half_precision(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    distance = (torch.arange(KEYS)[:, None] - torch.arange(KEYS)).abs()
    expected = normaliser(query, key, scale=0.3, visible=distance < 3) @ value
    options: dict[str, Any] = {"normaliser": normaliser, "window": 3, "scale": 0.3}
    torch.testing.assert_close(sharpmax.attention(query, key, value, **options), expected)
    halves = [x.bfloat16() for x in (query, key, value)]
    ours = sharpmax.attention(*halves, **options)
    exact = sharpmax.attention(*(x.float() for x in halves), **options)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, exact.bfloat16())


@every_normaliser
def test_decoding_step_by_step(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    options: dict[str, Any] = {"normaliser": normaliser, "is_causal": True}
    at_once = sharpmax.attention(query, key, value, **options)
    for n in range(1, KEYS + 1):
        row, *cache = query[:, :, n - 1 : n], key[:, :, :n], value[:, :, :n]
        step = sharpmax.attention(row, *cache, alignment="lower_right", **options)
        torch.testing.assert_close(step, at_once[:, :, n - 1 : n], atol=1e-5, rtol=1e-5)


@every_normaliser
def test_grouped_keys(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    key, value = key[:, :2], value[:, : 2 // normaliser.maps]
    ours = sharpmax.attention(query, key, value, normaliser=normaliser, enable_gqa=True)
    repeated = (x.repeat_interleave(2, dim=1) for x in (key, value))
    expected = sharpmax.attention(query, *repeated, normaliser=normaliser)
    torch.testing.assert_close(ours, expected)
    assert ours.shape == (2, HEADS // normaliser.maps, KEYS, 5)


@every_normaliser
def test_statistics_are_those_of_the_logits(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    options: dict[str, Any] = {"is_causal": True, "scale": 0.3}
    _, ours = sharpmax.attention(
        query, key, value, normaliser=normaliser, return_statistics=True, **options
    )
    expected = sharpmax.attention_statistics(query, key, **options)
    assert not ours.mass.requires_grad
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)


@every_normaliser
def test_a_row_that_sees_nothing(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = (x.requires_grad_() for x in tensors(normaliser))
    mask = torch.ones(KEYS, KEYS, dtype=torch.bool)
    mask[3] = False
    output = sharpmax.attention(query, key, value, normaliser=normaliser, attn_mask=mask)
    assert (output[:, :, 3] == 0).all()
    output.square().sum().backward()
    for tensor in (query, key, value, *normaliser.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()


@of_logits
def test_softcap_and_bias(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    query, key, value = tensors(normaliser)
    bias = torch.randn(KEYS, KEYS, generator=torch.Generator().manual_seed(3))
    bias[2, 4] = -torch.inf
    ours = sharpmax.attention(query, key, value, normaliser=normaliser, attn_mask=bias, softcap=1.5)
    logits = normaliser.logits(query, key, WIDTH**-0.5)
    logits = 1.5 * torch.tanh(logits / 1.5) + bias
    torch.testing.assert_close(ours, normaliser.weights(logits) @ value)


@of_more
def test_no_softcap_and_no_bias_without_logits(make: Callable[[], Normaliser]) -> None:
    normaliser = make()
    arguments = tensors(normaliser)
    name = type(normaliser).__name__
    with pytest.raises(NotImplementedError, match=f"softcap: normaliser {name} has no logits"):
        sharpmax.attention(*arguments, normaliser=normaliser, softcap=1.0)
    with pytest.raises(NotImplementedError, match=f"attn_mask: normaliser {name} has no logits"):
        sharpmax.attention(*arguments, normaliser=normaliser, attn_mask=torch.randn(KEYS, KEYS))


def test_dropout() -> None:
    query, key = torch.randn(2, 1, 2, 16, WIDTH).unbind()
    units = torch.eye(16).expand(1, 2, 16, 16)
    plain, dropped = (
        sharpmax.attention(query, key, units, normaliser=Entmax(), dropout_p=p) for p in (0.0, 0.5)
    )
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], 2.0 * plain[kept])
    assert 0.2 < kept.sum() / (plain > 0).sum() < 0.8


@pytest.mark.parametrize("policy", [Exponential(1.0), policies.LogLength(train_length=4)])
def test_softmax_is_attention_with_the_policy(policy: Any) -> None:
    query, key, value = tensors(Softmax())
    for given in (None, Identity()):
        ours = sharpmax.attention(
            query, key, value, policy=given, normaliser=Softmax(policy), is_causal=True
        )
        expected = sharpmax.attention(query, key, value, policy=policy, is_causal=True)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"policy": Exponential(1.0)}, ValueError, "policy, normaliser: expected one of the two"),
        (
            {"normaliser": "softmax"},
            TypeError,
            "normaliser: expected a sharpmax normaliser, got 's",
        ),
        ({"sink": torch.zeros(HEADS)}, ValueError, "sink: expected None with a normaliser"),
        ({"detach_temperature": True}, ValueError, "detach_temperature: expected False with a no"),
        ({"impl": "cpu"}, NotImplementedError, "impl='cpu': normaliser: only the reference"),
        ({"impl": "composed"}, NotImplementedError, "impl='composed': normaliser: only the ref"),
        ({"impl": "cuda"}, ValueError, "impl: expected one of auto, cpu.*got 'cuda'"),
        ({"normaliser": SSMax(3)}, ValueError, r"logits: expected 3 heads, got \(2, 4, 9, 9\)"),
        ({"normaliser": Differential(2)}, ValueError, "value: heads: expected 2, got 4"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    query, key, value = tensors(Softmax())
    arguments = {"query": query, "key": key, "value": value, "normaliser": OffByOne()} | change
    with pytest.raises(error, match=message):
        sharpmax.attention(**arguments)


def test_pairs_of_heads_come_in_pairs() -> None:
    query, key = torch.randn(2, 1, 3, KEYS, WIDTH).unbind()
    with pytest.raises(ValueError, match="key: expected heads in groups of 2, got 3"):
        sharpmax.attention(query, key, key[:, :1], normaliser=Differential(1))


def test_in_the_layer() -> None:
    torch.manual_seed(0)
    layer = SharpAttention(16, HEADS, normaliser=SSMax(HEADS), batch_first=True)
    x = torch.randn(2, 7, 16)
    output, weights = layer(x, x, x, average_attn_weights=False)
    assert output.shape == x.shape
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 7))
    output.square().sum().backward()
    assert layer.normaliser.scale.grad.abs().sum() > 0
    assert "normaliser.scale" in layer.state_dict()
    plain = nn.MultiheadAttention(16, HEADS, batch_first=True)
    plain.load_state_dict(
        {name: x for name, x in layer.state_dict().items() if not name.startswith("normaliser")}
    )
    softmax = SharpAttention(16, HEADS, normaliser=Softmax(), batch_first=True)
    softmax.load_state_dict(plain.state_dict())
    torch.testing.assert_close(softmax(x, x, x)[0], plain(x, x, x)[0])
    with pytest.raises(ValueError, match="normaliser: expected one with one map per head"):
        SharpAttention(16, HEADS, normaliser=Differential(2))
