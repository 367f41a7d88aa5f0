"""Every implementation against the specification in double precision."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from attention_cases import (
    SLOW,
    Case,
    cases,
    every_impl,
    examples,
    implementations,
    largest_error,
    may_refuse,
    measure,
)
from sharpmax._attention.impl import composed
from sharpmax.policies import EntropyTarget, Exponential


@implementations("reference")
def test_implementations_agree(impl: str) -> None:
    examples(impl, 250)(given(case=cases())(lambda case: _agree(impl, case)))()


@settings(max_examples=250)
@given(case=cases())
def test_what_is_chosen_automatically_agrees(case: Case) -> None:
    _agree("auto", case)


@settings(max_examples=100)
@given(case=cases())
def test_blocks_of_few_queries_agree(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composed, "LOGITS_AT_ONCE", 1000)
        _agree("composed", case)


def _agree(impl: str, case: Case) -> None:
    exact, exact_statistics = case.exact()
    reference, _ = case.run("reference")
    try:
        output, statistics = case.run(impl)
    except NotImplementedError:
        assert may_refuse(impl, case.query.dtype, case.options)
        return

    # As far from the truth as the specification itself is in this precision, or a few roundings.
    precision = torch.finfo(case.query.dtype).eps
    allowed = 4 * largest_error(reference, exact) + 8 * precision
    if case.query.dtype == torch.float64:
        allowed = 1e-12  # the specification and the truth are one and the same here
    if isinstance(case.policy, EntropyTarget):
        allowed += 2e-3  # both solve an equation, to 1e-4 nats
    assert output.dtype == case.query.dtype
    assert largest_error(output, exact) <= allowed
    tolerance = 1e-10 if case.query.dtype == torch.float64 else 1e-4
    assert torch.equal(statistics.count, exact_statistics.count)
    for name in ("maximum", "mass", "moment"):
        ours, truth = getattr(statistics, name), getattr(exact_statistics, name)
        size = 1.0 + float(truth[torch.isfinite(truth)].abs().sum())
        assert largest_error(ours, truth) <= tolerance * size, name
    assert largest_error(statistics.entropy(), exact_statistics.entropy()) <= tolerance


@implementations("reference")
def test_statistics_alone_are_those_of_the_attention(impl: str) -> None:
    examples(impl, 100)(given(case=cases())(lambda case: _measures(impl, case)))()


def _measures(impl: str, case: Case) -> None:
    try:
        measured = measure(case.query, case.key, impl=impl, **case.options)
    except NotImplementedError:
        assert may_refuse(impl, case.query.dtype, case.options)
        return
    _, exact = case.exact()
    assert torch.equal(measured.count, exact.count)
    assert largest_error(measured.entropy(), exact.entropy()) <= 1e-4
    dtype = torch.float64 if case.query.dtype == torch.float64 else torch.float32
    assert measured.mass.dtype == dtype


@implementations("reference")
@pytest.mark.parametrize("keys", [1000, 5000, 40_000])
@pytest.mark.parametrize("queries", [1, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_long_rows(impl: str, keys: int, queries: int, causal: bool) -> None:
    keys = keys // 10 if impl in SLOW else keys
    torch.manual_seed(keys + queries)
    query = 2 * torch.randn(1, 4, queries, 64)
    key, value = torch.randn(2, 1, 2, keys, 64).unbind()
    case = Case(
        query,
        key,
        value,
        Exponential(2.0),
        {"enable_gqa": True, "is_causal": causal, "alignment": "lower_right"},
    )
    exact, exact_statistics = case.exact()
    reference, _ = case.run("reference")
    output, statistics = case.run(impl)
    assert largest_error(output, exact) <= 4 * largest_error(reference, exact) + 1e-6
    assert largest_error(statistics.entropy(), exact_statistics.entropy()) < 1e-5


@implementations("reference", "composed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_nan_and_infinity(impl: str, dtype: torch.dtype) -> None:
    if may_refuse(impl, dtype):
        return
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 30, 8, dtype=dtype).unbind()
    query[0, 0, 3, 2] = torch.nan
    bias = torch.zeros(30, 30, dtype=dtype)
    bias[5, 7] = bias[5, 9] = torch.inf
    output, statistics = Case(query, key, value, Exponential(0.5), {"attn_mask": bias}).run(impl)
    exact, _ = Case(query, key, value, Exponential(0.5), {"attn_mask": bias}).run("reference")
    assert torch.isnan(output[0, 0, 3]).all()
    rest = torch.arange(30) != 3
    assert torch.isfinite(output[0, 0, rest]).all()
    torch.testing.assert_close(output[0, 0, 5], (value[0, 0, 7] + value[0, 0, 9]) / 2)
    torch.testing.assert_close(output[0, 0, rest], exact[0, 0, rest], atol=1e-5, rtol=1e-4)
    assert statistics.mass[0, 0, 5] == 2


@every_impl
def test_a_policy_does_not_follow_the_array_it_was_made_of(impl: str) -> None:
    """The kernel reads a table that it made at the first call, the others read the policy."""
    query = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    given = np.array([0.1, 0.5])
    case = Case(query, query, query, Exponential(given))
    before, _ = case.run(impl)
    given += 1.0
    with pytest.raises(ValueError, match="read-only"):
        case.policy.reference[0] = 3.0
    after, _ = case.run(impl)
    assert torch.equal(before, after)
    fresh, _ = Case(query, query, query, Exponential([0.1, 0.5])).run(impl)
    assert torch.equal(before, fresh)
    jaxed, _ = Case(query, query, query, Exponential(jax.numpy.asarray([0.1, 0.5]))).run(impl)
    torch.testing.assert_close(jaxed, fresh)
