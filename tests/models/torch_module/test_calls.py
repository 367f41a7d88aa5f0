"""What a call of attention gives, against attention that is written out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import sharpmax
from sharpmax.models import record
from sharpmax.policies import Constant, Exponential
from torch_models import HEADS, WIDTH, Flex, Stack, made, tokens

POLICY = Exponential(0.5)


class One(nn.Module):
    """A module that makes one call."""

    def __init__(self, function: Any = F.scaled_dot_product_attention) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def inputs(*shape: int, key_heads: int | None = None, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [shape, shape, shape]
    if key_heads:
        shapes = [shape, *[(*shape[:-3], key_heads, *shape[-2:])] * 2]
    return [3 * torch.randn(*each, generator=generator) for each in shapes]


def sharp(module: nn.Module, *args: Any, policy: Any = POLICY, **kwargs: Any) -> Any:
    with sharpmax.sharpen(module, policy):
        return module(*args, **kwargs)


BIAS = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"attn_mask": BIAS > -1},
    {"attn_mask": BIAS},
    {"attn_mask": BIAS[:, None, None] > -1},
    {"enable_gqa": True, "is_causal": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids="+".join)
def test_scaled_dot_product_attention(options: dict[str, Any]) -> None:
    batch = 6 if options.get("attn_mask", BIAS).ndim == 4 else 2
    given = inputs(batch, 4, 6, 8, key_heads=2 if "enable_gqa" in options else None)
    expected = sharpmax.attention(*given, **options, policy=POLICY)
    torch.testing.assert_close(sharp(One(), *given, **options), expected)
    plain = F.scaled_dot_product_attention(*given, **options)
    torch.testing.assert_close(sharp(One(), *given, **options, policy=Constant(1.0)), plain)
    assert not torch.allclose(expected, plain, atol=1e-3)


def test_three_axes_are_a_batch_of_one_head_and_five_have_more_leading_ones() -> None:
    given = inputs(3, 6, 8)
    with sharpmax.sharpen(module := One(), POLICY) as sharpened:
        found = module(*given, attn_mask=BIAS.expand(3, 6, 6))
        assert sharpened.status()[0].heads == 1
    single = [each.unsqueeze(1) for each in given]
    expected = sharpmax.attention(*single, attn_mask=BIAS, policy=POLICY).squeeze(1)
    torch.testing.assert_close(found, expected)
    many = inputs(2, 3, 4, 6, 8)
    torch.testing.assert_close(sharp(One(), *many), sharpmax.attention(*many, policy=POLICY))


def test_dropout_drops_and_scales_weights() -> None:
    query, key, _ = inputs(1, 2, 6, 8)
    value = torch.eye(6).expand(1, 2, 6, 6)
    expected = sharpmax.attention(query, key, value, policy=POLICY)
    torch.manual_seed(0)
    dropped = sharp(One(), query, key, value, dropout_p=0.5)
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[kept], 2 * expected[kept])


def test_nested_tensors_are_refused() -> None:
    ragged = [torch.randn(2, each, 8) for each in (3, 5)]
    nested = torch.nested.nested_tensor(ragged, layout=torch.jagged)
    with pytest.raises(NotImplementedError, match=r"query, key: expected dense tensors"):
        sharp(One(), nested, nested, nested)


def test_a_gain_and_heads_that_a_policy_cannot_leave_out() -> None:
    given = inputs(2, 4, 6, 8)
    plain = F.scaled_dot_product_attention(*given)
    hard = sharpmax.attention(*given, policy=sharpmax.policies.Hard())
    with sharpmax.sharpen(
        module := One(), sharpmax.policies.Hard(), heads=[1, 3], example=tuple(given)
    ):
        found = module(*given)
    torch.testing.assert_close(found[:, [0, 2]], plain[:, [0, 2]])
    torch.testing.assert_close(found[:, [1, 3]], hard[:, [1, 3]])
    calibration = sharpmax.models.Calibration.of(
        module, {}, gains={0: [1.0, 2.0, 1.0, 0.5]}, example=tuple(given)
    )
    with sharpmax.sharpen(module, calibration, example=tuple(given)):
        gains = torch.tensor([1.0, 2.0, 1.0, 0.5])[:, None, None]
        torch.testing.assert_close(module(*given), gains * plain)


PADDED = torch.arange(7) >= torch.tensor([[7], [5], [4]])
LATER = torch.ones(7, 7, dtype=torch.bool).triu(1)
MULTI_HEAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "padding": ({}, {"key_padding_mask": PADDED}),
    "padding and mask": ({}, {"key_padding_mask": PADDED, "attn_mask": LATER}),
    "bias": ({}, {"attn_mask": torch.randn(7, 7, generator=torch.Generator().manual_seed(5))}),
    "causal": ({}, {"attn_mask": LATER, "is_causal": True}),
    "bias of keys": ({"add_bias_kv": True}, {"attn_mask": LATER}),
    "zero": ({"add_zero_attn": True}, {"key_padding_mask": PADDED}),
    "other widths": ({"kdim": 6, "vdim": 5}, {}),
    "no bias": ({"bias": False}, {}),
    "per head": ({}, {"average_attn_weights": False}),
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", list(MULTI_HEAD))
def test_multi_head_attention(name: str, need_weights: bool) -> None:
    made_with, options = MULTI_HEAD[name]
    module: Any = made(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **made_with))
    x = 3 * tokens(7, batch=3)
    given = (x, x[..., : made_with.get("kdim", WIDTH)], x[..., : made_with.get("vdim", WIDTH)])
    call = partial(module, *given, need_weights=need_weights, **options)
    with torch.no_grad():
        plain, plain_weights = call()
        with sharpmax.sharpen(module, Constant(1.0)):
            torch.testing.assert_close(call(), (plain, plain_weights))
        with sharpmax.sharpen(module, POLICY):
            output, weights = call()
        assert not torch.allclose(output, plain, atol=1e-3)
        # The same weights as those without averages, and they give the output.
        if not need_weights:
            assert weights is None
            with sharpmax.sharpen(module, POLICY):
                expected, _ = module(*given, **options)
            torch.testing.assert_close(output, expected)
            return
        assert weights.shape == plain_weights.shape
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        entropy = [torch.special.entr(each).sum(-1).mean() for each in (weights, plain_weights)]
        assert entropy[0] < entropy[1]


def test_multi_head_attention_without_a_batch_and_with_dropout() -> None:
    module: Any = made(nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5))
    x = tokens(7)[0]
    with torch.no_grad(), sharpmax.sharpen(module, POLICY):
        output, weights = module(x, x, x)
        batched, _ = module(x[:, None], x[:, None], x[:, None])
        torch.testing.assert_close(output, batched[:, 0])
        assert weights.shape == (7, 7)
        module.train()
        torch.manual_seed(0)
        _, dropped = module(x, x, x, average_attn_weights=False)
        assert 0.2 < (dropped == 0).float().mean() < 0.8


def test_an_encoder_with_padding_leaves_its_fused_layers_and_nested_tensors() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    model = made(nn.TransformerEncoder(layer, 2))
    x = tokens(7, batch=3)
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
            plain = model(x, src_key_padding_mask=PADDED)
        with sharpmax.sharpen(model, Constant(1.0)):
            found = model(x, src_key_padding_mask=PADDED)
            torch.testing.assert_close(found[~PADDED], plain[~PADDED])
        with sharpmax.sharpen(model, Constant(3.0)) as sharpened:
            found = model(x, src_key_padding_mask=PADDED)
            assert not torch.allclose(found[~PADDED], plain[~PADDED], atol=1e-3)
            assert [row.kind for row in sharpened.status()] == ["encoder", "encoder"]


@pytest.fixture
def quiet_flex() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # It warns once per process that it is slow without a compiler.
        patch.setattr("torch.nn.attention.flex_attention._warn_once", lambda *_, **__: None)
        yield


def causal(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def blocks(mask_mod: Any = causal) -> BlockMask:
    return create_block_mask(mask_mod, None, None, 32, 32, device="cpu", BLOCK_SIZE=8)


@pytest.mark.usefixtures("quiet_flex")
@pytest.mark.parametrize("mask", ["none", "causal", "sparse"])
def test_flex_attention(mask: str) -> None:
    torch.compiler.reset()
    given, block_mask, seen = inputs(2, 2, 32, 8), None, torch.ones(32, 32, dtype=torch.bool)
    if mask == "causal":
        block_mask, seen = blocks(), seen.tril()
    elif mask == "sparse":
        # Two blocks of keys per block of queries, whatever is inside them.
        count = torch.full((1, 1, 4), 2, dtype=torch.int32)
        at = torch.tensor([[0, 1, 2, 3], [1, 3, 0, 2], [2, 0, 1, 3], [3, 0, 1, 2]])
        listed = at[None, None].to(torch.int32)
        block_mask = BlockMask.from_kv_blocks(count, listed, BLOCK_SIZE=8, seq_lengths=(32, 32))
        seen = torch.zeros(4, 4, dtype=torch.bool).scatter(1, at[:, :2], True)
        seen = seen.repeat_interleave(8, 0).repeat_interleave(8, 1)
    module = One(flex_attention)
    expected = sharpmax.attention(*given, attn_mask=seen, policy=POLICY)
    torch.testing.assert_close(sharp(module, *given, block_mask=block_mask), expected)
    plain = module(*given, block_mask=block_mask)
    assert not torch.allclose(plain, expected, atol=1e-3)
    if mask != "sparse":
        # Without a kernel, PyTorch does not look at the list of blocks.
        torch.testing.assert_close(plain, F.scaled_dot_product_attention(*given, attn_mask=seen))


@pytest.mark.usefixtures("quiet_flex")
def test_flex_attention_is_recorded_and_found_inside_a_model() -> None:
    torch.compiler.reset()
    model, x = made(Stack(Flex(block_mask=blocks()))), tokens(32)
    found = []

    class Rows:
        def record(self, layer: int, statistics: Any) -> None:
            found.append((layer, statistics.count[0, 0].tolist()))

    with torch.no_grad():
        before = model(x)
        with record(model, Rows()):
            torch.testing.assert_close(model(x), before)
        assert found == [(0, list(range(1, 33)))]
        with sharpmax.sharpen(model, {"blocks.0.attn": POLICY}, example=x) as sharpened:
            assert not torch.allclose(model(x), before, atol=1e-3)
            assert sharpened.status()[0].heads == HEADS
        assert torch.equal(model(x), before)


@pytest.mark.usefixtures("quiet_flex")
def test_a_modified_score_is_refused() -> None:
    torch.compiler.reset()

    def modified(score: Tensor, *_: Tensor) -> Tensor:
        return score * 2

    with pytest.raises(Exception, match=r"score_mod: expected None, got a function"):
        sharp(One(flex_attention), *inputs(2, 2, 32, 8), score_mod=modified)
