"""Attention over ranks against attention on one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import sharpmax
from attention_cases import POLICIES, Case
from distributed_calls import by_parameter, measure
from distributed_cases import Cut, alone, cuts, output_weights, run
from gloo import Pool, RankFailedError
from sharpmax.distributed._layout import even_layout, layout_of
from sharpmax.policies import Constant, EntropyTarget, Exponential, LogLength, Policy

METHODS = ("tree", "ring", "all_gather", "ulysses")
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


@every_method
def test_two_ranks_agree_with_one_device(two: Pool, method: str) -> None:
    settings(max_examples=24)(given(cut=cuts(2, method, dtypes=[torch.float32]))(_agree(two)))()


@every_method
def test_four_ranks_agree_with_one_device(four: Pool, method: str) -> None:
    settings(max_examples=8)(given(cut=cuts(4, method, dtypes=[torch.float32]))(_agree(four)))()


def _agree(pool: Pool) -> Any:
    def check(cut: Cut) -> None:
        try:
            ours = run(pool, cut)
        except RankFailedError as error:
            _refused_by_ulysses(error, cut, pool.size)
            return
        # An equation is solved in the same way by the specification, and otherwise by the kernels.
        impl = "reference" if cut.case.policy.needs_logits else "auto"
        _compare(ours, alone(cut.case, impl), alone(cut.case.double(), "reference"))

    return check


def _refused_by_ulysses(error: RankFailedError, cut: Cut, ranks: int) -> None:
    heads, key_heads = cut.case.query.shape[1], cut.case.key.shape[1]
    assert cut.method == "ulysses"
    assert heads % ranks or (key_heads % ranks and ranks % key_heads)
    assert len(error.raised) == ranks
    for kind, text in error.raised.values():
        assert kind == "NotImplementedError"
        assert "method='ulysses'" in text


def _compare(ours: Any, theirs: Any, exact: Any, relative: float = 1e-6) -> None:
    """Compare with one device: to 1e-6, or to a few times the error that it has itself.

    Nearly all tensors are within 1e-6 alone. The gradient of a bias whose terms cancel has no
    digits in single precision, on one device either.
    """
    assert torch.equal(ours[1].count, theirs[1].count)
    tensors = {"output": [x[0] for x in (ours, theirs, exact)]}
    tensors["entropy"] = [x[1].entropy() for x in (ours, theirs, exact)]
    tensors |= {name: [x[2][name] for x in (ours, theirs, exact)] for name in ours[2]}
    for name, (here, there, truth) in tensors.items():
        assert here.dtype == there.dtype
        allowed = relative + 4 * _distance(there, truth)
        assert _distance(here, there) <= allowed, name


def _distance(a: Tensor, b: Tensor) -> float:
    """The relative distance of two tensors."""
    assert a.shape == b.shape
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm().clamp(min=1e-3)) if a.numel() else 0.0


def _made(queries: int = 12, keys: int = 40, policy: Policy | None = None, **options: Any) -> Case:
    generator = torch.Generator().manual_seed(queries + keys)
    query = 2 * torch.randn(2, 4, queries, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, keys, 8, generator=generator).unbind()
    policy = Exponential(1.0) if policy is None else policy
    return Case(query, key, value, policy, {"enable_gqa": True} | options)


def _cut(case: Case, method: str, ranks: int, order: Any = "contiguous") -> Cut:
    queries = even_layout(case.query.shape[2], ranks, order)
    keys = even_layout(case.key.shape[2], ranks, order)
    return Cut(case, keys, None if method == "tree" else queries, order, method)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("method", ["tree", "ring"])
def test_policies(two: Pool, method: str, policy: Policy) -> None:
    case = _made(policy=policy, is_causal=True, alignment="lower_right")
    impl = "reference" if policy.needs_logits else "auto"
    exact = alone(case.double(), "reference")
    _compare(run(two, _cut(case, method, 2, "zigzag")), alone(case, impl), exact)


@pytest.mark.parametrize("method", ["tree", "ring"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(two: Pool, method: str, dtype: torch.dtype) -> None:
    case = _made()
    case = Case(
        *(x.to(dtype) for x in (case.query, case.key, case.value)), case.policy, case.options
    )
    exact = alone(case.double(), "reference")
    relative = 2 * torch.finfo(dtype).eps
    _compare(run(two, _cut(case, method, 2)), alone(case), exact, relative=relative)


@every_method
def test_parameters_of_a_policy_per_head(two: Pool, method: str) -> None:
    parameter = torch.tensor([0.2, 0.5, 0.9, 1.3], dtype=torch.float64)
    case = _made(is_causal=True)
    cut = _cut(case, method, 2)
    theirs = by_parameter(case.query, case.key, case.value, parameter, output_weights(case), {})
    per_rank = []
    for rank in range(2):
        here = [x[:, :, cut.keys.positions(rank)] for x in (case.key, case.value)]
        query, weights = case.query, output_weights(case)
        if cut.queries is not None:
            query, weights = (x[:, :, cut.queries.positions(rank)] for x in (query, weights))
        placement = "replicated" if cut.queries is None else "sharded"
        options = {"method": method, "query_placement": placement}
        per_rank.append((query, *here, parameter, weights, options))
    first, second = two.call(by_parameter, *per_rank)
    ours = first + second if cut.queries is not None else first
    assert cut.queries is not None or torch.equal(first, second)
    assert theirs.abs().min() > 0
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


@pytest.mark.parametrize("method", ["tree", "ring", "all_gather"])
def test_a_rank_without_keys_and_one_whose_keys_are_hidden(four: Pool, method: str) -> None:
    case = _made(queries=10, keys=20, is_causal=True)  # the last ten keys are hidden
    queries = None if method == "tree" else layout_of([3, 0, 3, 4], "contiguous")
    cut = Cut(case, layout_of([10, 0, 4, 6], "contiguous"), queries, "contiguous", method)
    exact = alone(case.double(), "reference")
    _compare(run(four, cut), alone(case), exact)


@pytest.mark.parametrize("method", ["tree", "ring"])
def test_rows_that_see_no_key(two: Pool, method: str) -> None:
    visible = torch.ones(12, 40, dtype=torch.bool)
    visible[3] = False
    for options in ({}, {"sink": torch.randn(4), "sink_role": "apart"}):
        case = _made(attn_mask=visible, **options)
        output, statistics, gradients = run(two, _cut(case, method, 2))
        assert not output[:, :, 3].any()
        assert not statistics.count[:, :, 3].any()
        assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("method", ["tree", "ring"])
def test_large_logits_and_a_large_beta(two: Pool, method: str) -> None:
    """Beta times a logit has no digits left of the distance between logits."""
    case = _made(policy=Constant(300.0), scale=1.0)
    case.query[..., 0] = 1000.0
    case.key[..., 0] = 1.0
    exact = alone(case.double(), "reference")
    ours, theirs = run(two, _cut(case, method, 2)), alone(case, "reference")
    assert theirs[0].isfinite().all()
    _compare(ours, theirs, exact)


@pytest.mark.parametrize("method", ["tree", "ring"])
def test_odd_numbers(two: Pool, method: str) -> None:
    bias = torch.zeros(12, 40)
    bias[2, 5] = bias[2, 30] = torch.inf  # one on each rank
    bias[4, 35] = torch.inf
    case = _made(attn_mask=bias)
    case.query[0, 0, 7, 1] = torch.nan
    case.value[:, :, 39, 0] = torch.inf
    bias[:, 39] = -torch.inf
    ours = run(two, _cut(case, method, 2), gradients=False)
    theirs = alone(case, "reference", gradients=False)
    torch.testing.assert_close(ours[0], theirs[0], equal_nan=True, atol=1e-6, rtol=1e-5)
    for mine, other in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, other, equal_nan=True, atol=1e-5, rtol=1e-5)


@every_method
def test_a_temperature_that_is_held(two: Pool, method: str) -> None:
    case = _made()
    exact = alone(case.double(), "reference", detach=True)
    ours = run(two, _cut(case, method, 2), detach=True)
    _compare(ours, alone(case, detach=True), exact)
    assert _distance(ours[2]["query"], run(two, _cut(case, method, 2))[2]["query"]) > 1e-3


@pytest.mark.parametrize("impl", ["reference", "composed", "cpu"])
def test_implementations(two: Pool, impl: str) -> None:
    case = _made(is_causal=True, policy=EntropyTarget(1.0))
    exact = alone(case.double(), "reference")
    for method in ("tree", "ring"):
        cut = _cut(case, method, 2, "zigzag")
        _compare(run(two, cut, impl=impl), alone(case, "reference"), exact)


def test_the_same_bits_on_repetition(two: Pool) -> None:
    for method in METHODS:
        cut = _cut(_made(policy=LogLength(8)), method, 2)
        first, second = run(two, cut), run(two, cut)
        assert torch.equal(first[0], second[0])
        assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


@pytest.mark.parametrize("method", METHODS)
def test_statistics_alone(two: Pool, method: str) -> None:
    case = _made(is_causal=True, window=9)
    cut = _cut(case, method, 2)
    options = case.options | {"method": method, "sink": torch.randn(4)}
    exact = sharpmax.attention_statistics(
        case.query, case.key, **case.options, sink=options["sink"]
    )
    options["query_placement"] = "replicated" if cut.queries is None else "sharded"
    per_rank = []
    for rank in range(2):
        rows = slice(None) if cut.queries is None else cut.queries.positions(rank)
        key = case.key[:, :, cut.keys.positions(rank)]
        per_rank.append(((case.query[:, :, rows], key), options))
    found = two.call(measure, *per_rank)
    whole = found[0] if cut.queries is None else map(lambda *x: torch.cat(x, 2), *found)
    for ours, theirs in zip(whole, exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
