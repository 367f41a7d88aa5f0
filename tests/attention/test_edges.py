"""Edges that every implementation defines alike: infinities, hidden NaN, extremes, no heads."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sharpmax
from attention_cases import (
    attend,
    every_impl,
    implementations,
    measure,
    of_tensors,
    precise,
    run,
)
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
    Paper,
    Policy,
)

few_or_many = pytest.mark.parametrize("queries", [1, 40], ids=["decode", "panels"])


def problem(
    logits: list[float], queries: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value with these logits in every row (width 1, scale 1); values 0, 1, 2, …"""
    key = torch.tensor(logits, dtype=dtype)[None, None, :, None]
    query = torch.ones(1, 1, queries, 1, dtype=dtype)
    value = torch.arange(len(logits), dtype=dtype)[None, None, :, None]
    return query, key, value


@every_impl
@few_or_many
@pytest.mark.parametrize("policy", [Identity(), Hard(), LogLength(2.0), Paper(), Exponential(0.1)])
def test_infinite_logits_share_a_row_also_beside_a_sink(
    impl: str, queries: int, policy: Policy
) -> None:
    tensors = problem([0.0, math.inf, 1.0, math.inf], queries)
    for sink in (None, torch.tensor([3.0]), torch.tensor([-math.inf])):
        output = attend(*tensors, policy=policy, sink=sink, impl=impl)
        torch.testing.assert_close(output, torch.full_like(output, 2.0))
    # A sink that is infinite as well takes its share, and its value is zero.
    output = attend(*tensors, policy=policy, sink=torch.tensor([math.inf]), impl=impl)
    torch.testing.assert_close(output, torch.full_like(output, 4.0 / 3.0))


@every_impl
@few_or_many
def test_an_infinite_sink_takes_all_but_infinite_logits(impl: str, queries: int) -> None:
    tensors, sink = problem([0.0, 2.0, 1.0], queries), torch.tensor([math.inf])
    for role in ("key", "apart"):
        output = attend(*tensors, sink=sink, sink_role=role, impl=impl)
        assert not output.any()
    beside = attend(
        *problem([0.0, math.inf], queries), sink=torch.tensor([5.0]), sink_role="apart", impl=impl
    )
    torch.testing.assert_close(beside, torch.ones_like(beside))


@every_impl
@few_or_many
def test_logits_that_the_product_makes_minus_infinite_are_not_counted(
    impl: str, queries: int
) -> None:
    tensors = problem([0.0, -math.inf, 0.0, 0.0], queries)
    query, key, value = (x.expand(-1, 2, -1, -1) for x in tensors)
    measured = measure(query, key, scale=1.0, impl=impl)
    assert (measured.count == 3).all()
    output = attend(query, key, value, policy=LogLength(5.0), impl=impl)
    torch.testing.assert_close(output, torch.full_like(output, 5.0 / 3.0))


@every_impl
@few_or_many
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hidden_keys_and_values_do_not_exist(
    impl: str, queries: int, odd: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, queries, 8, generator=generator, dtype=dtype)
    key, value = torch.randn(2, 1, 2, 70, 8, generator=generator, dtype=dtype).unbind()
    visible = torch.rand(1, 2, queries, 70, generator=generator) < 0.6
    visible[..., 3], visible[..., 66] = False, torch.arange(queries) % 2 == 1
    tensors = [x.clone().requires_grad_() for x in (query, key, value)]
    clean = attend(*tensors, visible, policy=Exponential(1.0), impl=impl)
    wanted = torch.autograd.grad(clean[:, :, ::2].sum(), tensors)
    key, value = key.clone(), value.clone()
    key[:, :, 3], value[:, :, 3] = odd, odd
    value[:, :, 66] = odd
    tensors = [x.clone().requires_grad_() for x in (query, key, value)]
    output = attend(*tensors, visible, policy=Exponential(1.0), impl=impl)
    # Even rows do not see key 66, odd ones do; nobody sees key 3.
    torch.testing.assert_close(output[:, :, ::2], clean[:, :, ::2])
    gradients = torch.autograd.grad(output[:, :, ::2].sum(), tensors)
    close = {"rtol": 0.0, "atol": 16 * torch.finfo(dtype).eps * float(wanted[0].abs().max())}
    torch.testing.assert_close(gradients[0][:, :, ::2], wanted[0][:, :, ::2], **close)
    if queries == 1:
        for ours, theirs in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, **close)


@every_impl
@few_or_many
@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("spoilt", [1, 2], ids=["key", "value"])
def test_gradients_do_not_pass_through_what_is_hidden(
    impl: str, queries: int, odd: float, spoilt: int
) -> None:
    # The first row sees nothing, and nobody sees the odd one.
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, queries, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, 5, 8, generator=generator).unbind()
    visible = torch.ones(queries, 5, dtype=torch.bool)
    visible[0], visible[:, 3] = False, False
    tensors = [query, key, value]
    found = []
    for number in (0.0, odd):
        tensors[spoilt][:, :, 3] = number
        leaves = [x.clone().requires_grad_() for x in tensors]
        output = attend(*leaves, visible, policy=LogLength(0.6), impl=impl)
        found.append([output.detach(), *torch.autograd.grad(output.sum(), leaves)])
    for clean, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, clean)


@every_impl
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_odd_value_beside_keys_that_nobody_sees(impl: str, dtype: torch.dtype) -> None:
    # 64 keys on end are hidden, so that a kernel may pass over them and hold no logits of theirs.
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 1, 24, 8, generator=generator, dtype=dtype)
    key, value = torch.randn(2, 1, 1, 192, 8, generator=generator, dtype=dtype).unbind()
    attend(query, key, value, impl=impl)  # leaves its logits in memory that is reused
    visible = torch.ones(24, 192, dtype=torch.bool)
    visible[:, 64:128], visible[::2, 3] = False, False
    clean = attend(query, key, value, visible, impl=impl)
    value[..., 3, 0] = math.nan
    output = attend(query, key, value, visible, impl=impl)
    torch.testing.assert_close(output[:, :, ::2], clean[:, :, ::2])
    assert output[:, :, 1::2, 0].isnan().all()


@every_impl
@few_or_many
def test_logits_at_the_end_of_the_range(impl: str, queries: int) -> None:
    lowest = torch.finfo(torch.float32).min
    output = attend(*problem([lowest, -math.inf, lowest], queries), impl=impl)
    torch.testing.assert_close(output, torch.ones_like(output))
    output = attend(*problem([lowest, -3e38, 3e38], queries), policy=Constant(1e30), impl=impl)
    torch.testing.assert_close(output, torch.full_like(output, 2.0))


@every_impl
@few_or_many
@pytest.mark.parametrize("policy", [Hard(), Constant(1e300), Constant(1e40)])
def test_a_beta_beyond_the_range_is_hard(impl: str, queries: int, policy: Policy) -> None:
    tiny = 1e-44
    for logits in ([0.0, tiny, -tiny], [1.0, 1.0 + 1e-6, 0.0]):
        tensors = problem(logits, queries)
        visible = torch.ones(3, dtype=torch.bool)
        for options in ({}, {"attn_mask": visible}, {"window": 50}):
            output = attend(*tensors, policy=policy, impl=impl, **options)
            torch.testing.assert_close(output, torch.ones_like(output))


@every_impl
@pytest.mark.parametrize("window", [sys.maxsize, 2**70, np.int64(10**6)])
def test_a_window_beyond_all_keys_is_none(impl: str, window: int) -> None:
    tensors = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).unbind()
    for causal in (False, True):
        ours = attend(*tensors, is_causal=causal, window=window, impl=impl)
        torch.testing.assert_close(ours, attend(*tensors, is_causal=causal, impl=impl))


@every_impl
@pytest.mark.parametrize("scale", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5)])
def test_numbers_of_any_kind(impl: str, scale: float) -> None:
    tensors = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).unbind()
    ours = attend(*tensors, scale=scale, window=np.int64(3), softcap=np.float32(2), impl=impl)
    theirs = attend(*tensors, scale=0.5, window=3, softcap=2.0, impl=impl)
    assert torch.equal(ours, theirs)


def test_what_is_no_number_or_too_small_is_refused() -> None:
    tensors = torch.zeros(3, 1, 2, 9, 4).unbind()
    with pytest.raises(TypeError, match=r"scale: expected a number, got '1'"):
        sharpmax.attention(*tensors, scale="1")
    with pytest.raises(TypeError, match=r"window: expected an integer or None, got 2\.5"):
        sharpmax.attention(*tensors, window=2.5)
    with pytest.raises(ValueError, match=r"softcap: expected a number of at least 1\.17"):
        sharpmax.attention(*tensors, softcap=1e-40)
    with pytest.raises(ValueError, match="scale: expected a finite number, got nan"):
        sharpmax.attention(*tensors, scale=np.float64("nan"))
    with pytest.raises(ValueError, match="scale: expected a finite number, got one beyond"):
        sharpmax.attention(*tensors, scale=10**400)
    for dtype, beyond in ((torch.float32, (1e300, -4e38, 1e-40)), (torch.float64, (5e-324,))):
        for scale in beyond:
            with pytest.raises(ValueError, match="scale: expected 0 or a normal number"):
                sharpmax.attention(*(x.to(dtype) for x in tensors), scale=scale)


@every_impl
@few_or_many
@pytest.mark.parametrize("scale", [0.0, 3.4e38, 2.0**-126])
def test_a_scale_at_the_ends_of_the_range(impl: str, queries: int, scale: float) -> None:
    query, key, value = problem([0.0, 1.0, 0.5], queries)
    output = attend(query, key, value, scale=scale, policy=Hard(), impl=impl)
    torch.testing.assert_close(output, torch.full_like(output, 1.0))


@implementations("ranks ulysses")  # which needs some
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_no_heads(impl: str, enable_gqa: bool) -> None:
    tensors = [torch.zeros(1, 0, 3, 4, requires_grad=impl != "numpy") for _ in range(3)]
    options = {"enable_gqa": enable_gqa, "impl": impl}
    output = run(*tensors, policy=Exponential(1.0), **options)
    assert output.shape == (1, 0, 3, 4)
    if impl != "numpy":
        assert torch.autograd.grad(output.sum(), tensors)[1].shape == (1, 0, 3, 4)
    assert measure(*(x.detach() for x in tensors[:2]), **options).entropy().shape == (1, 0, 3)


@of_tensors()
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_no_heads_with_a_number_for_each(impl: str, enable_gqa: bool) -> None:
    tensors = [torch.zeros(1, 0, 3, 4, requires_grad=True) for _ in range(3)]
    options = {"enable_gqa": enable_gqa, "impl": impl}
    for kind in (Exponential, EntropyTarget):
        numbers = torch.zeros(0, dtype=torch.float64, requires_grad=True)
        output = sharpmax.attention(*tensors, policy=kind(numbers), **options)
        found = torch.autograd.grad(output.sum(), [*tensors, numbers], allow_unused=True)
        assert found[3] is None or found[3].shape == (0,)


@every_impl
@few_or_many
def test_values_without_columns(impl: str, queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 1, queries, 8, generator=generator, requires_grad=True)
    key = torch.randn(1, 1, 70, 8, generator=generator, requires_grad=True)
    value = torch.zeros(1, 1, 70, 0, requires_grad=True)
    for policy in (Exponential(1.0), EntropyTarget(0.5)):
        output = attend(query, key, value, policy=policy, impl=impl)
        assert output.shape == (1, 1, queries, 0)
        for gradient in torch.autograd.grad(output.sum(), (query, key)):
            assert not gradient.any()


@every_impl
@few_or_many
def test_keys_without_columns(impl: str, queries: int) -> None:
    query, key = torch.zeros(1, 1, queries, 0), torch.zeros(1, 1, 4, 0)
    value = torch.arange(4.0).reshape(1, 1, 4, 1).requires_grad_()
    output = attend(query, key, value, policy=LogLength(2.0), scale=1.0, impl=impl)
    torch.testing.assert_close(output, torch.full_like(output, 1.5))
    (gradient,) = torch.autograd.grad(output.sum(), value)
    torch.testing.assert_close(gradient, torch.full_like(value, queries / 4))


@every_impl
@few_or_many
def test_the_sink_of_a_row_without_keys_has_a_gradient(impl: str, queries: int) -> None:
    tensors, seen = problem([1.0, 2.0], queries), torch.zeros(queries, 2, dtype=torch.bool)
    seen[1:] = True
    sink = torch.ones(1, requires_grad=True)
    for policy in (LogLength(2.0), Exponential(0.1)):
        output = attend(*tensors, attn_mask=seen, policy=policy, sink=sink, impl=impl)
        assert not output[..., 0, :].any()
        (gradient,) = torch.autograd.grad(output.sum(), sink)
        assert torch.isfinite(gradient).all()
        assert bool(gradient.any()) == (queries > 1)


@every_impl
@few_or_many
def test_a_sink_of_minus_infinity_is_none(impl: str, queries: int) -> None:
    sink, hidden = torch.tensor([-math.inf]), torch.zeros(3, dtype=torch.bool)
    for logits in ([0.0, 2.0, 1.0], [0.0, math.inf, math.inf]):
        tensors = problem(logits, queries)
        for role in ("key", "apart"):
            output = attend(*tensors, sink=sink, sink_role=role, impl=impl)
            torch.testing.assert_close(output, attend(*tensors, impl=impl))
            nothing = attend(*tensors, hidden, sink=sink, sink_role=role, impl=impl)
            assert torch.equal(nothing, torch.zeros_like(nothing))


@of_tensors("reference", "composed")
def test_a_fake_key_beside_a_real_query_does_no_harm(impl: str) -> None:
    query = torch.randn(1, 2, 3, 4)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(query)
    with torch.no_grad():
        output = sharpmax.attention(query, fake, fake, impl=impl)
    assert output.shape == query.shape


class Marked(torch.Tensor):
    """A tensor that is told apart by its type."""


@of_tensors()
def test_views_and_subclasses_mean_what_they_mean_elsewhere(impl: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 5, 4, generator=generator).unbind()
    mask, sink = torch.randn(5, 5, generator=generator), torch.randn(2, generator=generator)
    with torch.no_grad():
        plain = attend(query, key, value, -mask, sink=-sink, impl=impl)
        views = (torch._neg_view(x) for x in (mask, sink))
        ours = attend(query, key, value, next(views), sink=next(views), impl=impl)
        torch.testing.assert_close(ours, plain)
        assert type(sharpmax.attention(query, key.as_subclass(Marked), value, impl=impl)) is Marked


@every_impl
@few_or_many
@pytest.mark.parametrize("limit", [14.0, 48.0, 1.0, 1e6])
@pytest.mark.parametrize("target", [0.0, 0.3])
def test_rows_at_the_limit_of_an_entropy_target_do_not_move_it(
    impl: str, queries: int, limit: float, target: float
) -> None:
    # More logits tie for the maximum than the target allows, so that beta is the limit itself.
    generator = torch.Generator().manual_seed(0)
    dtype = precise(impl)
    query = torch.randn(1, 1, queries, 8, generator=generator, dtype=dtype)
    value = torch.randn(1, 1, 4, 8, generator=generator, dtype=dtype)
    key = torch.randn(1, 1, 1, 8, generator=generator, dtype=dtype).repeat(1, 1, 4, 1)
    leaves = [
        x.clone().requires_grad_() for x in (query, key, value, torch.zeros_like(value[0, 0, :, 0]))
    ]

    def gradients(policy: Policy) -> tuple[torch.Tensor, ...]:
        output = attend(*leaves, policy=policy, impl=impl)
        return torch.autograd.grad(output.square().sum(), leaves)

    # Terms of the size of the limit cancel, and nothing but their rounding may differ.
    close = {"rtol": 0.0, "atol": 64 * torch.finfo(dtype).eps * limit * queries}
    for ours, held in zip(
        gradients(EntropyTarget(target, limit)), gradients(Constant(limit)), strict=True
    ):
        torch.testing.assert_close(ours, held, **close)


def test_a_policy_keeps_the_numbers_that_it_was_given() -> None:
    given = np.array([1.0, 2.0])
    policy = Exponential(given)
    given[0] = 9.0
    assert policy.reference.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask", "sink"])
@pytest.mark.parametrize("queries", [1, 40], ids=["decode", "panels"])
def test_tensors_without_memory_are_refused(name: str, queries: int) -> None:
    """Their address is null, which stands for no mask and for no sink."""
    tensors = {each: torch.ones(1, 2, 40, 4) for each in ("query", "key", "value")}
    tensors["query"] = tensors["query"][:, :, :queries]
    tensors |= {"attn_mask": torch.ones(1, 2, queries, 40), "sink": torch.ones(2)}
    tensors[name] = torch._efficientzerotensor(tensors[name].shape)
    with pytest.raises(RuntimeError, match="expects arrays with memory of their own"):
        sharpmax.attention(**tensors, impl="cpu")


@pytest.mark.parametrize(
    "other", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn], ids=["sparse", "mkldnn"]
)
def test_tensors_that_are_not_dense_are_refused_by_name(other: Any) -> None:
    tensors = {name: torch.ones(1, 2, 9, 4) for name in ("query", "key", "value")}
    tensors |= {"attn_mask": torch.ones(1, 2, 9, 9), "sink": torch.ones(2)}
    for name in tensors:
        with pytest.raises(TypeError, match=f"{name}: expected a dense tensor, got one of layout"):
            sharpmax.attention(**tensors | {name: other(tensors[name])})


@pytest.mark.parametrize("settings", [{"scale": 0.5}, {"softcap": 2.0, "window": 4}])
def test_settings_compile_as_one_graph(settings: dict[str, float]) -> None:
    tensors = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).unbind()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(scale: float) -> torch.Tensor:
        return sharpmax.attention(*tensors, policy=Exponential(1.0), **{**settings, "scale": scale})

    for scale in (0.5, 0.25):
        theirs = sharpmax.attention(
            *tensors, policy=Exponential(1.0), **{**settings, "scale": scale}
        )
        torch.testing.assert_close(compiled(scale), theirs)
