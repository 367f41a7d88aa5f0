"""The architecture and the preprocessing of the model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.common.checkpoint import write_tensors
from experiments.tabular.model import Config, TabularTransformer, load_model, predict, prepare

CONFIG = Config(features=6, classes=4, width=16, hidden=16, heads=2, layers=2)


def made() -> TabularTransformer:
    torch.manual_seed(0)
    return TabularTransformer(CONFIG).eval()


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3))


def test_test_rows_see_the_context_alone() -> None:
    model, x, y = made(), rows(40), np.arange(30) % 3
    together = predict(model, x[:30], y, x[30:], 3)
    alone = [predict(model, x[:30], y, x[i : i + 1], 3)[0] for i in range(30, 40)]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_the_order_of_the_context_does_not_matter() -> None:
    model, x, y = made(), rows(40), np.arange(30) % 3
    order = np.random.default_rng(1).permutation(30)
    shuffled = predict(model, x[order], y[order], x[30:], 3)
    np.testing.assert_allclose(predict(model, x[:30], y, x[30:], 3), shuffled, atol=1e-5)
    assert np.abs(shuffled - predict(model, x[order], y, x[30:], 3)).max() > 1e-4


def test_preparation_uses_the_context_alone() -> None:
    x = rows(50)
    x[3, 1] = np.nan
    one = prepare(x[:30], x[30:40], 6)
    np.testing.assert_array_equal(one[:30], prepare(x[:30], 100 * x[40:], 6)[:30])
    assert one.shape == (40, 6)
    assert not one[:, 3:].any()
    assert one[3, 1] == 0.0  # the mean
    assert one[:30, 0].std(ddof=1) == pytest.approx(6 / 3, rel=1e-3)


def test_outliers_are_pulled_in_and_constant_columns_dropped() -> None:
    x = np.column_stack([rows(200)[:, 0], np.full(200, 3.0)])
    x[0, 0] = 1e6
    prepared = prepare(x[:150], x[150:], 4)
    assert np.abs(prepared).max() < 4 * 20
    assert not prepared[:, 1:].any()


def test_the_converted_file_gives_the_model_back(tmp_path: Path) -> None:
    model = made()
    write_tensors(tmp_path / "model.safetensors", model.state_dict(), asdict(CONFIG))
    again = load_model(tmp_path / "model.safetensors")
    x, y = rows(40), np.arange(30) % 3
    np.testing.assert_array_equal(
        predict(model, x[:30], y, x[30:], 3), predict(again, x[:30], y, x[30:], 3)
    )
