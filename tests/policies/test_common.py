"""What every policy has to do, in every framework."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sharpmax
from frameworks import Framework
from sharpmax import SharpmaxError, policies
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
    Monotone,
    Paper,
    Policy,
    Polynomial,
)

INF = float("inf")
ALL = [
    Identity(),
    Paper(warn=False),
    Polynomial((-0.1, 1.0, 0.5), threshold=0.3),
    Exponential(reference=0.8),
    Exponential(reference=0.2, strength=0.5),
    EntropyTarget(target=0.7),
    LogLength(),
    LogLength(scale=1.5, train_length=4),
    Constant(2.0),
    Hard(),
    Monotone((0.5, 1.0, 2.0), (1.0, 1.5, 4.0)),
    Monotone((0.5, 1.0), (1.2, 1.5), outside="constant"),
]
"""At least one of each kind; a test below sees to it."""
PER_HEAD = [
    Exponential(reference=[0.2, 0.9, 1.5]),
    Exponential(reference=0.2, strength=[0.0, 0.5, 1.0]),
    EntropyTarget(target=[0.2, 0.9, 1.5]),
    LogLength(scale=[0.5, 1.0, 2.0]),
    Constant([4.0, 2.0, 1.0]),
    Polynomial((2.0, 0.0), threshold=[0.2, 0.9, 1.5]),
    Monotone([[0.5, 1.0]] * 3, [[1.0, 1.5], [1.0, 2.0], [1.0, 3.0]]),
]

every_policy = pytest.mark.parametrize("policy", ALL, ids=repr)
rows = hnp.arrays(np.float32, (3, 7), elements=st.one_of(st.floats(-8, 8, width=32), st.just(-INF)))


def test_every_policy_is_here() -> None:
    public = {getattr(policies, name) for name in policies.__all__}
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Policy)}
    assert kinds - {Policy} == {type(policy) for policy in ALL}


@functools.cache
def _beta_and_weights(framework: Framework, policy: Policy) -> Callable[[Any], Any]:
    return framework.compiled(
        lambda e: (
            sharpmax.inverse_temperature(e, policy),
            sharpmax.softmax(e, policy),
            sharpmax.softmax(e),
        )
    )


@every_policy
@given(values=rows)
def test_never_flattens_and_sums_to_one(
    framework: Framework, policy: Policy, values: np.ndarray
) -> None:
    computed = _beta_and_weights(framework, policy)(framework.array(values))
    beta, weights, plain = map(framework.numpy, computed)
    occupied = (values > -INF).any(-1)
    assert beta.shape == (3,)
    assert (beta >= 1).all()
    np.testing.assert_array_equal(beta[~occupied], 1)
    np.testing.assert_allclose(weights.sum(-1), occupied, atol=1e-5)
    np.testing.assert_array_equal(weights[values == -INF], 0)
    assert (weights.max(-1) >= plain.max(-1) - 1e-5).all()


@every_policy
def test_permutation_of_a_row_permutes_its_weights(framework: Framework, policy: Policy) -> None:
    generator = np.random.default_rng(0)
    values, order = generator.normal(size=(4, 31)) * 3, generator.permutation(31)
    straight = framework.numpy(sharpmax.softmax(framework.array(values), policy))
    permuted = framework.numpy(sharpmax.softmax(framework.array(values[:, order]), policy))
    np.testing.assert_allclose(permuted, straight[:, order], atol=1e-5)


@every_policy
def test_masked_equals_absent(framework: Framework, policy: Policy) -> None:
    values = np.random.default_rng(1).normal(size=(4, 20))
    padded = np.concatenate([values, np.full((4, 5), 50.0)], axis=-1)
    visible = np.arange(25) < 20
    ours = sharpmax.softmax(framework.array(padded), policy, where=framework.mask(visible))
    theirs = sharpmax.softmax(framework.array(values), policy)
    np.testing.assert_allclose(framework.numpy(ours)[:, :20], framework.numpy(theirs), atol=1e-6)
    np.testing.assert_array_equal(framework.numpy(ours)[:, 20:], 0)


@every_policy
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(framework: Framework, policy: Policy, dtype: str) -> None:
    values = framework.array(np.random.default_rng(2).normal(size=(3, 50)), dtype)
    weights = sharpmax.softmax(values, policy)
    assert framework.dtype(weights) == dtype
    single = sharpmax.softmax(framework.array(framework.numpy(values)), policy)
    np.testing.assert_allclose(
        framework.numpy(weights), framework.numpy(single), atol=4e-3, rtol=1e-2
    )


@every_policy
def test_frameworks_agree(policy: Policy) -> None:
    values = np.random.default_rng(3).normal(size=(5, 40)).astype(np.float32) * 2
    expected = sharpmax.softmax(values.astype(np.float64), policy)
    for ours in (
        sharpmax.softmax(torch.tensor(values), policy),
        sharpmax.softmax(jnp.asarray(values), policy),
    ):
        np.testing.assert_allclose(np.asarray(ours), expected, atol=1e-5)


@every_policy
def test_gradients(policy: Policy) -> None:
    values = torch.tensor(np.random.default_rng(4).normal(size=(2, 6)) * 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: sharpmax.softmax(e, policy), values)
    with_gaps = torch.tensor([[-INF] * 3, [0.0, -INF, 1.0]], requires_grad=True)
    sharpmax.softmax(with_gaps, policy)[:, 0].sum().backward()
    assert with_gaps.grad is not None
    assert torch.isfinite(with_gaps.grad).all()
    gradient = jax.grad(lambda e: sharpmax.softmax(e, policy)[..., 0].sum())
    assert bool(jnp.isfinite(gradient(jnp.asarray([[-INF] * 3, [0.0, -INF, 1.0]]))).all())


@pytest.mark.parametrize("policy", PER_HEAD, ids=repr)
def test_a_policy_does_not_change(policy: Policy) -> None:
    """Neither with the arrays that it was made of, nor by writing to its own."""
    given = {field.name: getattr(policy, field.name) for field in fields(policy)}
    own = {k: np.array(x) if isinstance(x, np.ndarray) else x for k, x in given.items()}
    made = type(policy)(**own)
    for array in own.values():
        if isinstance(array, np.ndarray):
            array += 1.0
    assert made == policy
    every = np.array([True, False, True])
    copies = [made.take_heads([2, 0, 1]), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    switched = made.only_on(every)
    for each in (made, *copies, *[switched] * (switched is not None)):
        for name, array in each.per_head().items():
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 3.0
            assert not np.shares_memory(array, own[name])


def test_a_policy_follows_a_tensor_that_is_learned() -> None:
    strength = torch.zeros(3, requires_grad=True)
    policy = Exponential(0.5, strength=strength)
    logits = torch.zeros(3, 100)
    assert sharpmax.inverse_temperature(logits, policy).tolist() == [1.0] * 3
    with torch.no_grad():
        strength += 1.0
    assert (sharpmax.inverse_temperature(logits, policy) > 50).all()


@every_policy
def test_under_compilation(policy: Policy) -> None:
    values = np.random.default_rng(5).normal(size=(3, 9)).astype(np.float32)
    expected = sharpmax.softmax(values, policy)
    torch.compiler.reset()  # a fresh cache: one function is not compiled for ever more policies
    compiled = torch.compile(sharpmax.softmax, fullgraph=True, backend="aot_eager")
    np.testing.assert_allclose(compiled(torch.tensor(values), policy), expected, atol=1e-5)
    jitted = jax.jit(lambda e: sharpmax.softmax(e, policy))
    np.testing.assert_allclose(jitted(jnp.asarray(values)), expected, atol=1e-5)
    mapped = jax.vmap(lambda e: sharpmax.softmax(e, policy))
    np.testing.assert_allclose(mapped(jnp.asarray(values)), expected, atol=1e-5)
    batched = torch.func.vmap(lambda e: sharpmax.softmax(e, policy))
    np.testing.assert_allclose(batched(torch.tensor(values)), expected, atol=1e-5)


def test_made_inside_a_compiled_function() -> None:
    def function(e: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        plain = sharpmax.softmax(e, Exponential(0.5))
        return plain + sharpmax.softmax(e, Exponential(reference))

    values, reference = torch.randn(3, 9), torch.tensor(0.4)
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(values, reference), function(values, reference))


@pytest.mark.parametrize("policy", [*ALL, *PER_HEAD], ids=repr)
def test_json_round_trip(policy: Policy) -> None:
    again = Policy.from_json(policy.to_json())
    assert again == policy
    assert hash(again) == hash(policy)
    assert type(again) is type(policy)
    assert json.loads(policy.to_json())["policy"] == type(policy).__name__


@pytest.mark.parametrize("policy", PER_HEAD, ids=repr)
def test_parameters_over_heads(framework: Framework, policy: Policy) -> None:
    values = np.random.default_rng(6).normal(size=(2, 3, 4, 20))
    beta = framework.numpy(
        sharpmax.inverse_temperature(framework.array(values), policy.over_queries())
    )
    assert beta.shape == (2, 3, 4)
    for head in range(3):
        parameters = policy.to_dict()
        for name, value in parameters["parameters"].items():
            if isinstance(value, list) and len(value) == 3:
                parameters["parameters"][name] = value[head]
        alone = Policy.from_dict(parameters)
        expected = sharpmax.inverse_temperature(framework.array(values[:, head]), alone)
        np.testing.assert_allclose(beta[:, head], framework.numpy(expected), rtol=1e-5)


@pytest.mark.parametrize("policy", [*ALL, *PER_HEAD], ids=repr)
def test_frozen(policy: Policy) -> None:
    with pytest.raises(AttributeError):
        policy.anything = 1


@every_policy
def test_says_its_range(policy: Policy) -> None:
    low, high, outside = policy.entropy_range
    assert 0 <= low < high
    assert outside


def test_equality_is_by_value() -> None:
    assert Exponential(1.0) == Exponential(1)
    assert Exponential(1.0) != Exponential(2.0)
    assert Exponential([1.0, 2.0]) == Exponential(torch.tensor([1.0, 2.0]))
    assert Identity() != Hard()
    assert Identity() != "Identity"


def test_parameters_receive_gradients() -> None:
    reference = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, 2, 4, 10, dtype=torch.float64)
    policy = Exponential(reference).over_queries()
    sharpmax.softmax(values, policy)[..., 0].sum().backward()
    assert reference.grad is not None
    assert (reference.grad != 0).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Exponential(-1.0), ValueError, r"Exponential.reference: .* at least 0, got -1"),
        (lambda: Exponential(INF), ValueError, r"Exponential.reference: .*finite.*got inf"),
        (lambda: Exponential([1.0, np.nan]), ValueError, r"Exponential.reference.*nan"),
        (lambda: Exponential(torch.tensor([-1.0])), ValueError, r"Exponential.reference"),
        (lambda: Exponential("1"), TypeError, r"Exponential.reference: expected a number .*'1'"),
        (lambda: Exponential(True), TypeError, r"Exponential.reference: .*True"),
        (lambda: Exponential(None), TypeError, r"Exponential.reference: .*None"),
        (lambda: Exponential(1.0, strength=-1), ValueError, r"Exponential.strength"),
        (lambda: EntropyTarget(-0.1), ValueError, r"EntropyTarget.target: .*at least 0"),
        (lambda: EntropyTarget(1.0, limit=0.5), ValueError, r"EntropyTarget.limit: .*at least 1"),
        (lambda: Constant(0.0), ValueError, r"Constant.beta: .*above 0, got 0"),
        (lambda: LogLength(train_length=1), ValueError, r"LogLength.train_length: .*above 1"),
        (lambda: LogLength(train_length="8"), TypeError, r"LogLength.train_length"),
        (lambda: Polynomial(()), ValueError, r"Polynomial.coefficients"),
        (lambda: Polynomial(1.0), ValueError, r"Polynomial.coefficients"),
        (lambda: Monotone((1.0, 1.0), (1.0, 2.0)), ValueError, r"Monotone.entropies: .*increasing"),
        (
            lambda: Monotone((1.0, 2.0), (2.0, 1.0)),
            ValueError,
            r"Monotone.inverse_temp.*never decrease",
        ),
        (
            lambda: Monotone((1.0, 2.0), (0.5, 1.0)),
            ValueError,
            r"Monotone.inverse_temp.*at least 1",
        ),
        (lambda: Monotone((1.0, 2.0), (1.0,)), ValueError, r"Monotone: .*got 1 and 2"),
        (lambda: Monotone(1.0, 1.0), ValueError, r"Monotone.entropies: .*got a number"),
        (lambda: Monotone((1.0,), (1.0,), outside="x"), ValueError, r"Monotone.outside: .*'x'"),
    ],
)
def test_construction_is_checked(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "Nobody"}, "expected one of .*Exponential.*got 'Nobody'"),
        ({"format": 2}, "written by a newer sharpmax"),
        ({"format": "1"}, "expected format 1"),
        ({"parameters": {"reference": 1.0, "colour": 3}}, r"got \['colour'\]"),
        ({"parameters": {}}, "reference"),
        ({"parameters": {"reference": "much"}}, "reference"),
        ({"parameters": {"reference": -1.0}}, "at least 0"),
    ],
)
def test_reading_refuses_what_it_does_not_know(change, message) -> None:
    data = {**Exponential(1.0).to_dict(), **change}
    with pytest.raises(ValueError, match=message):
        Policy.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"policy": "Hard"}'])
def test_reading_refuses_other_text(text: str) -> None:
    with pytest.raises(SharpmaxError, match=r"policy: (expected|truncated)"):
        Policy.from_json(text)
