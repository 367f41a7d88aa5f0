"""What is measured of each trained model, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.clrs_text.evaluation import answer_entropies, shares_correct
from experiments.clrs_text.methods import applied, change_of
from experiments.clrs_text.settings import Settings
from experiments.clrs_text.task import Example
from experiments.clrs_text.training import Training
from experiments.common.checkpoint import read_tensors

__all__ = ["LOSS", "entropies", "loss_curve", "shares"]

LOSS = "CLRS-Text loss, format 1"
"""The kind of file that holds the loss during trainings."""


def shares(
    trained: Training,
    method: str,
    questions: Mapping[tuple[str, int], Sequence[Example]],
    settings: Settings,
) -> dict[str, dict[str, dict[str, float]]]:
    """Compute the shares of correct answers and tokens, by algorithm and size.

    Args:
        trained: The model.
        method: The attention of the test, for a model that was trained with plain softmax; others
            keep that of their training.
        questions: Questions by algorithm and size.
        settings: The settings of the run.

    Returns:
        Per algorithm and size, the share of correct answers as "exact", that of correct answer
        tokens as "tokens".
    """
    context: AbstractContextManager[object] = trained.attention
    if trained.recipe.attention == "softmax":
        change = change_of(
            method, trained.model, trained.encoder, settings.lengths, steps=settings.fit_steps
        )
        context = applied(trained.model, change)
    found: dict[str, dict[str, Any]] = {name: {} for name in settings.lengths}
    with context:
        for (name, n), examples in questions.items():
            each = shares_correct(trained.model, trained.encoder, examples)
            exact = sum(share == 1 for share in each) / len(each)
            found[name][str(n)] = {"exact": exact, "tokens": sum(each) / len(each)}
    return found


def entropies(trained: Training, asked: Mapping[float, Sequence[Example]]) -> dict[str, Any]:
    """Measure the entropy of every head in rows that predict answers, by multiple of the size.

    Args:
        trained: The model.
        asked: Questions by multiple of the largest training size.

    Returns:
        The multiples, the mean number of visible tokens, and the mean and the standard deviation of
        the entropy, [multiples][layers][heads].
    """
    measured = [answer_entropies(trained.model, trained.encoder, own) for own in asked.values()]
    return {
        "multiples": list(asked),
        "visible": [float(np.mean(each.visible)) for each in measured],
        "mean": [each.entropy.mean(-1).tolist() for each in measured],
        "deviation": [each.entropy.std(-1).tolist() for each in measured],
    }


def loss_curve(weights: Path, points: int = 200) -> dict[str, list[float]]:
    """Read the loss during a training from its weights.

    Args:
        weights: A file that `train` returned.
        points: The most points of the curve; each is the mean of the steps since the one before.

    Returns:
        The "steps" and the "loss".
    """
    losses = read_tensors(weights)[0]["losses"]
    parts = np.array_split(losses, min(points, len(losses)))
    return {
        "steps": np.cumsum([len(part) for part in parts]).tolist(),
        "loss": [float(f"{part.mean():.5g}") for part in parts],
    }
