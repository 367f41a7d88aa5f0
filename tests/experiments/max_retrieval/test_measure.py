from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.measure import (
    best_inverse_temperature,
    load_figures,
    measure_figures,
    save_figures,
)


def _log_weight(beta: float, logits: np.ndarray, item: int) -> float:
    row = beta * logits
    return float(row[item] - row.max() - np.log(np.exp(row - row.max()).sum()))


def test_the_best_inverse_temperature_is_the_best() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(30, 12)) * 3
    second = np.argsort(-logits, 1)[:, 1]
    found = best_inverse_temperature(logits, second)
    assert np.isfinite(found).all()
    for beta, row, item in zip(found, logits, second, strict=True):
        best = _log_weight(beta, row, item)
        others = [_log_weight(b, row, item) for b in beta * np.geomspace(0.01, 100, 99)]
        assert best >= max(others) - 1e-12


def test_an_item_that_cannot_be_helped() -> None:
    logits = np.array([[0.0, 1.0, 3.0], [0.0, 1.0, 3.0]])
    assert best_inverse_temperature(logits, np.array([2, 0])).tolist() == [np.inf, 0.0]


def test_what_is_measured_for_the_figures(tmp_path: Path) -> None:
    heads = Heads([4], width=32).requires_grad_(False)
    heads.q *= 30
    data = measure_figures(heads, [16, 64], "a command")
    path = save_figures(tmp_path / "figures.json", data)
    assert load_figures(path)["attention"] == data["attention"]
    attention = np.array(data["attention"]["weights"])
    assert attention.shape == (3, 2, 32, 16)
    # All 16 items of a set of 16 are shown, so their weights are whole.
    assert attention[:, 0].sum(-1) == pytest.approx(1, abs=1e-2)
    assert (attention[:, 1].sum(-1) < 1.001).all()
    fit = data["fit"]
    assert len(fit["entropy"]) == len(fit["inverse_temperature"]) == len(fit["n"])
    assert set(fit["n"]) == {16, 64}
    assert len(fit["refit"]) == len(fit["published"]) == 5
    assert min(fit["inverse_temperature"]) > 0
