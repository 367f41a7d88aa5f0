from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
import sharpmax
from frameworks import Framework
from sharpmax import theory

spreads = st.floats(0.0, 50.0)
temperatures = st.floats(0.05, 20.0)
epsilons = st.floats(1e-9, 1.0)


@st.composite
def bounded_rows(draw: st.DrawFn) -> tuple[np.ndarray, float]:
    """A row that lies within a spread, at many lengths, extreme rows included."""
    spread = draw(spreads)
    n = draw(st.one_of(st.integers(1, 8), st.sampled_from([16, 100, 1000, 20_000])))
    kind = draw(st.sampled_from(["uniform", "one above", "one below", "two levels"]))
    shift = draw(st.floats(-100.0, 100.0))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "uniform":
        row = random.uniform(0.0, spread, size=n)
    elif kind == "two levels":
        row = spread * random.integers(0, 2, size=n).astype(float)
    else:
        row = np.full(n, 0.0 if kind == "one above" else spread)
        row[random.integers(n)] = spread if kind == "one above" else 0.0
    return row + shift, float(np.ptp(row + shift))


class TestDispersionBounds:
    @given(bounded_rows(), temperatures)
    def test_no_bounded_row_leaves_them(
        self, row_and_spread: tuple[np.ndarray, float], temperature: float
    ) -> None:
        row, spread = row_and_spread
        weights = oracle.weights(row, 1.0 / temperature)
        lower, upper = theory.dispersion_bounds(len(row), spread, temperature)
        # A spread up to 1000 in the exponent magnifies the rounding of the logits by as much.
        slack = 1e-15 * (len(row) + (spread + abs(row).max()) / temperature) + 1e-12
        assert weights.min() >= lower * (1 - slack)
        assert weights.max() <= upper * (1 + slack)

    def test_they_are_attained_in_the_limit(self) -> None:
        # One logit above all others comes as near to the upper bound as one wishes.
        n, spread = 10**6, 3.0
        row = np.zeros(n)
        row[0] = spread
        lower, upper = theory.dispersion_bounds(n, spread)
        assert oracle.weights(row).max() == pytest.approx(upper, rel=1e-4)
        assert oracle.weights(-row).min() == pytest.approx(lower, rel=1e-4)

    @given(st.integers(1, 10**12), spreads, temperatures)
    def test_formula(self, n: int, spread: float, temperature: float) -> None:
        lower, upper = theory.dispersion_bounds(n, spread, temperature)
        exponent = mpmath.mpf(spread) / mpmath.mpf(temperature)
        assume(exponent < 650)
        assert upper == pytest.approx(float(mpmath.exp(exponent) / n), rel=1e-12)
        assert lower == pytest.approx(float(mpmath.exp(-exponent) / n), rel=1e-12)

    @given(st.floats(600.0, 900.0), st.integers(0, 300))
    def test_large_exponents_overflow_only_where_the_bound_does(
        self, spread: float, power: int
    ) -> None:
        lower, upper = theory.dispersion_bounds(10**power, spread)
        exact = mpmath.exp(spread) / mpmath.mpf(10) ** power
        if exact < 1e308:
            assert upper == pytest.approx(float(exact), rel=1e-10)
        elif exact > 1.8e308:
            assert upper == math.inf
        assert 0.0 <= lower < 1e-250

    def test_numbers_give_numbers_and_arrays_broadcast(self) -> None:
        assert all(type(bound) is float for bound in theory.dispersion_bounds(np.int64(3), 1))
        lower, upper = theory.dispersion_bounds(np.array([[1], [10]]), [0.0, 1.0, 2.0])
        assert lower.shape == upper.shape == (2, 3)
        assert upper[1, 2] == theory.dispersion_bounds(10, 2.0).upper

    def test_lengths_beyond_64_bits(self) -> None:
        assert theory.dispersion_bounds(10**30, 0.0).upper == pytest.approx(1e-30)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((0, 1.0), ValueError, r"^n: expected finite numbers of at least 1, got 0"),
            ((2.5, 1.0), ValueError, r"^n: expected whole numbers, got 2.5"),
            ((10**400, 1.0), ValueError, r"^n: .*got one beyond double precision"),
            (("ten", 1.0), TypeError, r"^n: expected finite numbers .*got 'ten'"),
            ((True, 1.0), TypeError, r"^n: expected"),
            ((3, -0.5), ValueError, r"^spread: expected finite numbers of at least 0, got -0.5"),
            ((3, math.nan), ValueError, r"^spread: .*got nan"),
            ((3, [1.0, math.inf]), ValueError, r"^spread: .*got inf"),
            ((3, 1j), TypeError, r"^spread: expected"),
            ((3, 1.0, 0.0), ValueError, r"^temperature: expected finite numbers above 0, got 0"),
            (([1, 2], [1.0, 2.0, 3.0]), ValueError, r"broadcast.*n \(2,\), spread \(3,\)"),
        ],
    )
    def test_errors_name_the_argument(
        self, arguments: tuple[Any, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            theory.dispersion_bounds(*arguments)


class TestCriticalLength:
    @given(spreads, epsilons, temperatures)
    @example(0.0, 0.1, 1.0)
    @example(0.0, 1.0 / 13.0, 1.0)
    @example(0.0, 1.0, 1.0)
    @example(math.log(2.0), 0.25, 1.0)
    @example(5.69, 0.01, 1.0)
    def test_is_the_first_length_whose_bound_is_below_epsilon(
        self, spread: float, epsilon: float, temperature: float
    ) -> None:
        assume(spread / temperature < 35.0)
        length = theory.critical_length(spread, epsilon, temperature)
        assume(length <= 2**53)
        assert theory.dispersion_bounds(length, spread, temperature).upper < epsilon
        if length > 1:
            assert theory.dispersion_bounds(length - 1, spread, temperature).upper >= epsilon

    @given(st.floats(0.0, 2000.0), epsilons, temperatures)
    def test_is_exact_beyond_double_precision(
        self, spread: float, epsilon: float, temperature: float
    ) -> None:
        assume(spread / temperature < 2000.0)
        length = theory.critical_length(spread, epsilon, temperature)
        with mpmath.workdps(1000):
            exact = int(
                mpmath.floor(
                    mpmath.exp(mpmath.mpf(spread) / mpmath.mpf(temperature)) / mpmath.mpf(epsilon)
                )
                + 1
            )
        if length > 2**53:
            assert length == exact
        else:
            # Within the rounding of the bound as double precision computes it.
            assert abs(length - exact) <= 1 + 1e-14 * exact * (1 + spread / temperature)

    @given(bounded_rows(), epsilons)
    def test_no_longer_row_reaches_epsilon(
        self, row_and_spread: tuple[np.ndarray, float], epsilon: float
    ) -> None:
        row, spread = row_and_spread
        if len(row) > theory.critical_length(spread, epsilon):
            assert oracle.weights(row).max() < epsilon * (1 + 1e-12)

    def test_golden_values(self) -> None:
        # floor(exp(5.69) / 0.01) + 1 and so on, for the spreads that the paper measured.
        assert theory.critical_length(5.69, 0.01) == 29_590
        assert theory.critical_length(0.0, 0.01) == 101
        assert theory.critical_length(0.0, 1.0) == 2

    def test_grows_with_the_spread_and_falls_with_temperature(self) -> None:
        by_spread = theory.critical_length(np.linspace(0.0, 20.0, 50), 0.01)
        assert (np.diff(by_spread) > 0).all()
        by_temperature = theory.critical_length(5.0, 0.01, np.linspace(0.2, 5.0, 50))
        assert (np.diff(by_temperature) < 0).all()

    def test_huge_lengths_are_integers_to_the_last_digit(self) -> None:
        length = theory.critical_length(800.0, 0.5)
        assert isinstance(length, int)
        assert len(str(length)) == 348
        mixed = theory.critical_length([1.0, 800.0], 0.5)
        assert mixed.dtype == object
        assert mixed.tolist() == [6, length]
        assert theory.critical_length([[1.0], [2.0]], [0.5, 0.1, 0.01]).dtype == np.int64

    def test_the_largest_can_be_printed(self) -> None:
        assert len(str(theory.critical_length(9000.0, 5e-324))) < 4300

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((1.0, 0.0), ValueError, r"^epsilon: expected .* above 0 and at most 1, got 0.0"),
            ((1.0, 1.5), ValueError, r"^epsilon: .*got 1.5"),
            ((1e5, 0.1), OverflowError, r"^spread / temperature: expected at most 9000"),
            ((1.0, 0.1, 1e-300), OverflowError, r"^spread / temperature"),
            ((-1.0, 0.1), ValueError, r"^spread: "),
            ((None, 0.1), TypeError, r"^spread: "),
        ],
    )
    def test_errors_name_the_argument(
        self, arguments: tuple[Any, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            theory.critical_length(*arguments)


class TestSpreadBound:
    @given(
        random_seed=st.integers(0, 2**32 - 1),
        width=st.integers(1, 6),
        inputs=st.integers(1, 6),
        scale=st.floats(0.0, 3.0),
    )
    def test_no_logits_are_further_apart(
        self, random_seed: int, width: int, inputs: int, scale: float
    ) -> None:
        random = np.random.default_rng(random_seed)
        query_weight, key_weight = random.normal(size=(2, width, inputs)) * random.exponential()
        y, x = random.normal(size=inputs), random.standard_cauchy(size=(50, inputs))
        logits = scale * (x @ key_weight.T) @ (query_weight @ y)
        bound = theory.spread_bound(
            query_weight,
            key_weight,
            np.linalg.norm(y),
            np.linalg.norm(x, axis=-1).max(),
            scale=scale,
        )
        assert np.ptp(logits) <= bound * (1 + 1e-12)

    def test_is_attained(self, framework: Framework) -> None:
        # x along the top singular directions, once with each sign.
        query_weight, key_weight = np.diag([3.0, 1.0]), np.diag([2.0, 1.0])
        bound = theory.spread_bound(
            framework.array(query_weight), framework.array(key_weight), 5.0, 7.0, scale=0.5
        )
        logits = [0.5 * (query_weight @ [5.0, 0.0]) @ (key_weight @ [x, 0.0]) for x in (7.0, -7.0)]
        assert framework.owns(bound)
        assert float(bound) == pytest.approx(logits[0] - logits[1], rel=1e-6)

    def test_a_bound_for_each_head(self, framework: Framework) -> None:
        weights = np.random.default_rng(0).normal(size=(4, 8, 16))
        norms = np.arange(1.0, 5.0)
        together = theory.spread_bound(
            framework.array(weights), framework.array(weights), framework.array(norms), 2.0
        )
        apart = [
            float(theory.spread_bound(w, w, norm, 2.0))
            for w, norm in zip(weights, norms, strict=True)
        ]
        np.testing.assert_allclose(framework.numpy(together), apart, rtol=1e-5)

    def test_half_precision_is_computed_in_single(self, framework: Framework) -> None:
        weight = framework.array(np.eye(3) * 200.0, "float16")
        bound = theory.spread_bound(weight, weight, 1.0, 1.0)
        assert framework.dtype(bound) == "float32"
        assert float(bound) == pytest.approx(80_000.0)

    def test_gradients_reach_the_weights(self) -> None:
        weight = torch.tensor([[3.0, 0.0], [0.0, 1.0]], requires_grad=True)
        theory.spread_bound(weight, weight.detach(), 1.0, 1.0).backward()
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, torch.tensor([[6.0, 0.0], [0.0, 0.0]]))
        compiled = jax.jit(theory.spread_bound)
        assert float(compiled(jnp.eye(2), jnp.eye(2), 1.0, 3.0)) == pytest.approx(6.0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((np.ones(3), np.eye(2), 1.0, 1.0), r"^query_weight: .*got shape \(3,\)"),
            ((np.eye(2), np.ones((0, 2)), 1.0, 1.0), r"^key_weight: .*got shape \(0, 2\)"),
            ((np.eye(2), np.eye(2), -1.0, 1.0), r"^query_norm: .*at least 0, got -1.0"),
            ((np.eye(2), np.eye(2), 1.0, math.nan), r"^key_norm: .*got nan"),
            ((np.eye(2), np.eye(2), 1.0, 1.0, math.inf), r"^scale: .*got inf"),
            ((torch.eye(2), torch.eye(2), 1.0, 1.0, -2.0), r"^scale: .*got -2.0"),
        ],
    )
    def test_errors_name_the_argument(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            theory.spread_bound(*arguments)


class TestEntropyDerivative:
    @given(
        logits=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-20.0, 20.0)),
        beta=st.floats(0.0, 5.0),
    )
    def test_is_the_slope_of_the_entropy(self, logits: np.ndarray, beta: float) -> None:
        with mpmath.workdps(40):
            slope = mpmath.diff(lambda b: _exact_entropy(logits, b), beta)
        derivative = theory.entropy_derivative(logits, beta)
        assert float(derivative) == pytest.approx(float(slope), rel=1e-8, abs=1e-9)
        assert derivative <= 0.0

    @given(
        logits=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-50.0, 50.0)),
        warmer=st.floats(0.01, 100.0),
        ratio=st.floats(0.01, 1.0),
    )
    def test_entropy_falls_as_the_temperature_falls(
        self, logits: np.ndarray, warmer: float, ratio: float
    ) -> None:
        entropies = [
            float(sharpmax.entropy(logits / temperature))
            for temperature in (warmer, warmer * ratio)
        ]
        assert entropies[1] <= entropies[0] + 1e-9

    def test_on_each_framework(self, framework: Framework) -> None:
        logits = np.random.default_rng(1).normal(size=(3, 40)) * 2.0
        where = np.arange(40) < 25
        beta = np.array([0.5, 1.0, 3.0])
        expected = []
        for row, b in zip(logits[:, :25], beta, strict=True):
            p = oracle.weights(row, b)
            expected.append(-b * (p * (row - p @ row) ** 2).sum())
        derivative = theory.entropy_derivative(
            framework.array(logits), framework.array(beta), where=framework.mask(where)
        )
        assert framework.owns(derivative)
        np.testing.assert_allclose(framework.numpy(derivative), expected, rtol=1e-4)
        along_columns = theory.entropy_derivative(
            framework.array(logits.T), beta.tolist(), axis=0, where=framework.mask(where[:, None])
        )
        np.testing.assert_allclose(framework.numpy(along_columns), expected, rtol=1e-4)

    def test_agrees_with_automatic_differentiation(self) -> None:
        logits = np.random.default_rng(2).normal(size=12).astype(np.float32)
        slope = jax.grad(lambda b: sharpmax.entropy(b * jnp.asarray(logits)))(1.5)
        assert float(theory.entropy_derivative(logits, 1.5)) == pytest.approx(
            float(slope), rel=1e-4
        )
        compiled = jax.jit(theory.entropy_derivative)
        assert float(compiled(jnp.asarray(logits), 1.5)) == pytest.approx(float(slope), rel=1e-4)

    def test_gradients_reach_beta(self) -> None:
        beta = torch.tensor(2.0, requires_grad=True)
        theory.entropy_derivative(np.array([0.0, 1.0, 3.0], dtype=np.float32), beta).backward()
        assert beta.grad is not None
        assert torch.isfinite(beta.grad)

    def test_limits(self, framework: Framework) -> None:
        logits = framework.array([[0.0, 1.0, 2.0], [-np.inf, -np.inf, -np.inf]])
        for beta in (0.0, math.inf):
            derivative = theory.entropy_derivative(logits, beta)
            assert framework.numpy(derivative).tolist() == [0.0, 0.0]

    @pytest.mark.parametrize(
        ("beta", "message"),
        [
            (-1.0, r"^beta: expected a number of at least 0, got -1.0"),
            (math.nan, r"^beta: .*got nan"),
            ([1.0, 2.0, 3.0], r"^beta: .*broadcasts to \(2,\), got \(3,\)"),
        ],
    )
    def test_errors_name_the_argument(self, framework: Framework, beta: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            theory.entropy_derivative(framework.array(np.zeros((2, 4))), beta)


class TestEntropyGrid:
    @given(
        bases=hnp.arrays(np.float64, st.integers(1, 4), elements=st.floats(-3.0, 3.0)),
        temperatures=hnp.arrays(np.float64, st.integers(1, 4), elements=st.floats(0.05, 50.0)),
    )
    def test_is_the_entropy_of_the_powers(
        self, bases: np.ndarray, temperatures: np.ndarray
    ) -> None:
        grid = theory.entropy_grid(bases, temperatures)
        assert grid.shape == (len(bases), len(temperatures))
        for i, base in enumerate(bases):
            for j, temperature in enumerate(temperatures):
                powers = np.array([base**k for k in range(1, 11)])
                expected = oracle.entropy(powers, 1.0 / temperature)
                assert grid[i, j] == pytest.approx(expected, rel=1e-9, abs=1e-9)

    def test_falls_as_the_temperature_falls(self) -> None:
        grid = theory.entropy_grid(np.linspace(0.0, 3.0, 40), np.geomspace(1e-3, 1e3, 60))
        assert (np.diff(grid, axis=1) >= -1e-9).all()
        assert grid.min() >= 0.0
        assert grid.max() <= math.log(10) + 1e-9

    def test_ends(self) -> None:
        assert theory.entropy_grid(1.0, 1.0) == pytest.approx(math.log(10))
        assert theory.entropy_grid(2.0, 5e-324) == 0.0
        assert theory.entropy_grid(-1e30, 1e-300) == 0.0
        assert theory.entropy_grid(1.0, 1.0, powers=4) == pytest.approx(math.log(4))
        assert theory.entropy_grid(np.ones((2, 3)), np.ones(4)).shape == (2, 3, 4)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((1e200, 1.0), r"^bases: expected powers within double precision, got 1e\+200\^10"),
            ((math.nan, 1.0), r"^bases: .*got nan"),
            ((2.0, 0.0), r"^temperatures: .*above 0, got 0"),
            ((2.0, 1.0, 0), r"^powers: .*at least 1, got 0"),
            ((2.0, 1.0, 2.5), r"^powers: expected whole numbers, got 2.5"),
        ],
    )
    def test_errors_name_the_argument(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            theory.entropy_grid(*arguments)


def _exact_entropy(logits: np.ndarray, beta: Any) -> Any:
    exponents = [mpmath.mpf(float(e)) * beta for e in logits]
    mass = mpmath.fsum(mpmath.exp(e) for e in exponents)
    return mpmath.log(mass) - mpmath.fsum(e * mpmath.exp(e) for e in exponents) / mass
