"""The synthetic prior, and the strengths that are fitted on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from experiments.tabular import prior
from experiments.tabular.arms import Watched, policies_of
from experiments.tabular.comparisons import fit_table
from experiments.tabular.model import Config, TabularTransformer
from sharpmax._files import read_sealed


def test_tables_of_the_prior_can_be_learned_and_have_all_classes() -> None:
    generator = np.random.default_rng(3)
    counts = set()
    for _ in range(12):
        given, classes = prior.draw_table(generator, 800, 200)
        assert given.context.shape == (800, given.test.shape[1])
        assert np.isfinite(given.context).all()
        every = np.concatenate([given.classes, classes])
        shares = np.bincount(every, minlength=given.count) / len(every)
        assert shares.min() > 0.015
        counts.add(given.count)
    assert min(counts) == 2
    assert max(counts) > 4


def test_the_same_seed_draws_the_same_table() -> None:
    first, second = (prior.draw_table(np.random.default_rng(5), 50, 10) for _ in range(2))
    np.testing.assert_array_equal(first[0].context, second[0].context)
    np.testing.assert_array_equal(first[1], second[1])


def test_strengths_are_fitted_stored_and_used_per_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TabularTransformer(Config(width=16, hidden=16, heads=2, layers=2)).eval()
    model.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = prior.FitSettings(sizes=(1_100,), test_rows=40, steps=3, checked=1)
    path = tmp_path / "strengths.json"
    losses: list[float] = []
    found = prior.fit_strengths(
        model, path, settings, "a command", lambda _step, _steps, loss: losses.append(loss)
    )
    assert found.shape == (2, 2)
    assert found.max() > 0.0
    assert found.min() >= 0.0
    assert len(losses) == 3
    np.testing.assert_array_equal(prior.load_strengths(path), found)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert read_sealed(path, prior.KIND)["command"] == "a command"
    assert "1 fresh synthetic tables" in fit_table(path).caption
    policies = policies_of("fitted", np.ones((2, 2)), strengths=found)
    assert isinstance(policies[1], Watched)
    np.testing.assert_array_equal(policies[1].strength, found[1])
