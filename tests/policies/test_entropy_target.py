from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
import sharpmax
from frameworks import Framework
from sharpmax.policies import EntropyTarget


@functools.cache
def _solve(framework: Framework) -> Callable[[Any, Any], Any]:
    return framework.compiled(
        lambda row, target: sharpmax.inverse_temperature(row, EntropyTarget(target, limit=4e6))
    )


@given(
    shape=st.sampled_from(["uniform", "normal", "one", "two", "power"]),
    size=st.sampled_from([8, 100, 3000]),
    solution=st.floats(1.0, 1e6),
    seed=st.integers(0, 100),
)
def test_reaches_the_target(
    framework: Framework, shape: str, size: int, solution: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    row = {
        "uniform": generator.random(size),
        "normal": generator.normal(size=size),
        "one": np.where(np.arange(size) == 0, 1.0, 0.0),  # the steepest fall there is
        "two": np.where(np.arange(size) < 2, np.arange(size) * 1e-3, -1.0),
        "power": np.arange(1.0, size + 1.0) ** -3,
    }[shape].astype(np.float32)
    # The target is what the row has at a beta that is known, scaled so that the row is soft there.
    row = row * np.float32(3.0 / solution)
    target = oracle.entropy(row.astype(np.float64), solution)
    beta = framework.numpy(_solve(framework)(framework.array(row), target))
    assert oracle.entropy(row.astype(np.float64), float(beta)) == pytest.approx(target, abs=1e-4)


def test_in_double_precision_gradients_are_those_of_the_solution() -> None:
    # They are taken at the beta that the steps find, so an error of that beta is one of theirs.
    logits = 4.0 * torch.from_numpy(np.random.default_rng(0).normal(size=(2000, 16)))
    target = torch.full((2000,), 0.8, dtype=torch.float64, requires_grad=True)
    beta = sharpmax.inverse_temperature(logits, EntropyTarget(target))
    (gradient,) = torch.autograd.grad(beta.sum(), target)
    solved = beta.detach() > 1
    slope = sharpmax.theory.entropy_derivative(logits, beta.detach())
    torch.testing.assert_close(gradient[solved], 1 / slope[solved], rtol=1e-11, atol=0.0)


def test_rows_at_or_below_the_target_are_left_alone(framework: Framework) -> None:
    values = framework.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    beta = framework.numpy(sharpmax.inverse_temperature(values, EntropyTarget(np.log(3.0) + 1e-3)))
    np.testing.assert_array_equal(beta, [1, 1])


def test_ties_that_keep_the_entropy_up_get_the_limit(framework: Framework) -> None:
    values = framework.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    policy = EntropyTarget(0.1, limit=1e3)
    np.testing.assert_allclose(framework.numpy(sharpmax.inverse_temperature(values, policy)), 1e3)
    np.testing.assert_allclose(
        framework.numpy(sharpmax.softmax(values, policy)), [[0.5, 0.5, 0], [1 / 3] * 3], atol=1e-6
    )


def test_gradient_of_the_target() -> None:
    logits = torch.linspace(0, 1, 50, dtype=torch.float64)
    target = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t: sharpmax.inverse_temperature(logits, EntropyTarget(t)), target
    )
