"""What each policy does that the others do not."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax
from sharpmax.policies import Constant, Exponential, Hard, LogLength, Monotone, Polynomial


def beta_at(policy, entropy: float) -> float:
    """The inverse temperature of a row of that entropy (as near as a row of equals can be)."""
    return float(sharpmax.inverse_temperature(np.zeros(round(np.exp(entropy))), policy))


def test_exponential_restores_the_reference_where_competitors_are_even() -> None:
    # Logits 30 * priority with evenly spread priorities: the head of the derivation.
    reference = float(sharpmax.entropy(30 * np.linspace(0, 1, 1000)))
    for n in (4_000, 64_000, 1_000_000):
        logits = 30 * np.linspace(0, 1, n)
        beta = float(sharpmax.inverse_temperature(logits, Exponential(reference)))
        assert float(sharpmax.entropy(beta * logits)) == pytest.approx(reference, abs=0.02)


def test_log_length_counts_visible_keys() -> None:
    visible = np.arange(100) < 16
    policy = LogLength(scale=0.7)
    beta = sharpmax.inverse_temperature(np.zeros(100), policy, where=visible)
    assert float(beta) == pytest.approx(0.7 * np.log(16))
    assert float(sharpmax.inverse_temperature(np.zeros(2), policy)) == 1


def test_constant_flattens_when_asked() -> None:
    assert float(sharpmax.inverse_temperature(np.zeros(3), Constant(0.25))) == 0.25


def test_hard_is_the_limit_of_constant() -> None:
    logits = np.array([0.3, 1.0, 0.99, 1.0])
    np.testing.assert_allclose(
        sharpmax.softmax(logits, Hard()), sharpmax.softmax(logits, Constant(1e5)), atol=1e-12
    )


def test_monotone_between_and_outside_its_knots() -> None:
    knots, betas = np.log([10, 100, 1000]), np.array([1.5, 2.0, 6.0])
    curve = Monotone(knots, betas)
    for knot, beta in zip(knots, betas, strict=True):
        assert beta_at(curve, knot) == pytest.approx(beta)
    middle = float(np.exp(np.interp(np.log(50), knots, np.log(betas))))
    assert beta_at(curve, np.log(50)) == pytest.approx(middle)
    assert beta_at(curve, np.log(2)) == pytest.approx(1.5)
    assert beta_at(curve, np.log(3000)) == pytest.approx(18.0)
    assert beta_at(Monotone(knots, betas, outside="constant"), np.log(3000)) == pytest.approx(6.0)


def test_fit_finds_the_law_behind_noisy_pairs() -> None:
    generator = np.random.default_rng(0)
    entropies = generator.uniform(2, 7, 5000)
    betas = np.exp(entropies - 2 + generator.normal(0, 0.3, 5000))
    policy = Monotone.fit(entropies, betas, knots=20)
    law = Exponential(2.0)
    for entropy in (2.5, 4.0, 6.5, 8.0):
        assert np.log(beta_at(policy, entropy)) == pytest.approx(
            np.log(beta_at(law, entropy)), abs=0.12
        )
    low, high, _ = policy.entropy_range
    assert 2 <= low < high <= 7


def test_fit_is_monotone_even_if_the_data_are_not() -> None:
    entropies = np.linspace(0, 6, 300)
    policy = Monotone.fit(entropies, 1.5 + np.sin(3 * entropies), knots=32)
    assert (np.diff(policy.inverse_temperatures) >= 0).all()
    assert (np.asarray(policy.inverse_temperatures) >= 1).all()


def test_fit_of_one_entropy_alone() -> None:
    assert beta_at(Monotone.fit([np.log(8.0)] * 5, [2.0] * 5), np.log(8)) == pytest.approx(2.0)


def test_fit_of_the_polynomial_gives_back_the_coefficients() -> None:
    entropies = np.linspace(0.1, 6, 50)
    coefficients = (-0.037, 0.481, -2.3, 4.917, -1.791)
    betas = np.maximum(np.polyval(coefficients, entropies), 1e-3)
    inside = np.polyval(coefficients, entropies) > 1e-3
    policy = Polynomial.fit(entropies[inside], betas[inside])
    np.testing.assert_allclose(policy.coefficients, coefficients, atol=1e-8)


@pytest.mark.parametrize(
    ("fit", "arguments", "message"),
    [
        (Monotone.fit, ([1.0, 2.0], [1.0]), "one length"),
        (Monotone.fit, ([], []), "at least one pair"),
        (Monotone.fit, ([1.0], [0.0]), "inverse_temperatures above 0"),
        (Polynomial.fit, ([-1.0], [1.0]), "entropies of at least 0"),
        (Polynomial.fit, ([np.nan], [1.0]), "finite entropies"),
        (Polynomial.fit, ([1.0] * 9, [1.0] * 9), "more than 4 different"),
    ],
)
def test_fit_refuses(fit, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(*arguments)
