from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
import sharpmax
from sharpmax import RowStatistics
from sharpmax.policies import EntropyRangeWarning, Paper, _polynomial

GOLDEN = {1: 1.270, 2: 2.099, 3: 2.250, 4: 2.389, 4.5: 2.419, 5: 2.294, 5.5: 1.847, 6: 0.855}


def beta_at(entropy: np.ndarray) -> np.ndarray:
    """The inverse temperature of rows with these entropies and no keys to guard."""
    zero = np.zeros_like(entropy)
    rows = RowStatistics(zero, np.exp(entropy), zero, zero)
    return Paper(warn=False).inverse_temperature(rows)


@pytest.mark.parametrize(("entropy", "expected"), GOLDEN.items())
def test_golden_values(entropy: float, expected: float) -> None:
    assert np.polyval(Paper.COEFFICIENTS, entropy) == pytest.approx(expected, abs=5e-4)
    beta = beta_at(np.array(float(entropy)))
    assert float(beta) == pytest.approx(max(1.0, expected), abs=5e-4)


@given(
    size=st.sampled_from([5, 16, 64, 256, 1024, 4096, 16384]),
    spread=st.floats(0.0, 10.0),
    seed=st.integers(0, 1000),
)
def test_equals_figure_4(size: int, spread: float, seed: int) -> None:
    logits = spread * np.random.default_rng(seed).random(size)
    beta, weights = oracle.figure_4(logits)
    policy = Paper(warn=False)
    assert float(sharpmax.inverse_temperature(logits, policy)) == pytest.approx(beta, abs=1e-6)
    np.testing.assert_allclose(sharpmax.softmax(logits, policy), weights, atol=1e-6)


def test_range_in_which_it_sharpens() -> None:
    entropies = np.linspace(0, 9, 90_001)
    beta = beta_at(entropies)
    sharpened = entropies[beta > 1]
    low, high, _ = Paper().entropy_range
    assert sharpened.min() == pytest.approx(low, abs=1e-3)
    assert sharpened.max() == pytest.approx(high, abs=1e-3)
    assert beta.max() == pytest.approx(2.42, abs=5e-3)
    assert entropies[beta.argmax()] == pytest.approx(4.41, abs=1e-2)


def test_warns_once_when_rows_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_polynomial, "_warned", [])
    sharpmax.softmax(np.zeros(100), Paper())  # 4.6 nats: all is well
    sharpmax.softmax(np.zeros(1000), Paper(warn=False))  # silenced
    with pytest.warns(EntropyRangeWarning, match=r"no correction above 5\.945 nats"):
        sharpmax.softmax(torch.zeros(1000), Paper())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharpmax.softmax(np.zeros(1000), Paper())
