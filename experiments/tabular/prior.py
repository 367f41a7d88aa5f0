"""Fit one strength per head on synthetic tables, with the weights frozen.

The tables come from a simple prior: a random network scores the rows, and cuts through the scores
make classes. TabPFN was trained on a much richer prior of this kind (arXiv 2207.01848). No real
table is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

import sharpmax
from experiments.common.significance import bootstrap_interval
from experiments.tabular.arms import (
    TRAINED,
    Given,
    entropies,
    example_of,
    policies_of,
    sharpened,
)
from experiments.tabular.measures import log_loss, measure
from experiments.tabular.model import TabularTransformer, logits_of
from sharpmax._files import read_sealed, versions, write_sealed
from sharpmax.policies import Exponential

__all__ = ["FULL", "QUICK", "FitSettings", "draw_table", "fit_strengths", "load_strengths"]

KIND: Final = "strengths, format 1"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FitSettings:
    """Hold the settings of the fit.

    Attributes:
        sizes: Rows of the contexts, in turn.
        test_rows: Test rows per table.
        steps: Steps of Adam, one table each.
        learning_rate: Its first rate; it falls to 0 along a cosine.
        checked: Fresh tables of the largest size, on which the fit is compared with plain softmax
            and with one strength for all heads.
        compared: That one strength.
        seed: Seed of the tables.
    """

    sizes: tuple[int, ...] = (2_048, 4_096)
    test_rows: int = 512
    steps: int = 32
    learning_rate: float = 0.03
    checked: int = 8
    compared: float = 0.125
    seed: int = 0


FULL: Final = FitSettings()
QUICK: Final = FitSettings(sizes=(1_100,), test_rows=50, steps=2, checked=2)


def draw_table(generator: np.random.Generator, context: int, test: int) -> tuple[Given, Array]:
    """Draw a table from the prior.

    Features are correlated normal numbers; some become levels, some get a heavy tail. A network of
    one to three hidden layers scores each row, noise is added, and cuts at random shares of the
    rows make 2 to 10 classes in random order.

    Returns:
        Context and test rows, and the classes of the test rows.

    Example:
        >>> import numpy as np
        >>> given, classes = draw_table(np.random.default_rng(0), 100, 20)
        >>> len(given.classes), len(classes), given.count >= 2
        (100, 20, True)
    """
    rows = context + test
    features = int(generator.integers(3, 31))
    x = generator.normal(size=(rows, features))
    x += x @ generator.normal(size=(features, features)) * generator.uniform(0, 1) / features**0.5
    hidden = x
    for _ in range(generator.integers(1, 4)):
        weights = generator.normal(size=(hidden.shape[1], 32)) / hidden.shape[1] ** 0.5
        hidden = np.tanh(generator.uniform(1, 3) * hidden @ weights + generator.normal(size=32))
    score = hidden @ generator.normal(size=32)
    noise = 10 ** generator.uniform(-2, 0)
    score = score / score.std() + noise * generator.normal(size=rows)

    count = 2 if generator.random() < 0.4 else int(generator.integers(3, 11))
    # No class is rarer than 2 percent, as in the rule for real tables.
    shares = 0.02 + (1 - 0.02 * count) * generator.dirichlet(np.full(count, 2.0))
    cuts = np.quantile(score, np.cumsum(shares)[:-1])
    classes = generator.permutation(count)[np.searchsorted(cuts, score)]

    for column in range(features):
        kind = generator.random()
        if kind < 0.3:
            levels = np.sort(generator.normal(size=generator.integers(1, 10)))
            x[:, column] = np.searchsorted(levels, x[:, column])
        elif kind < 0.45:
            x[:, column] = np.exp(x[:, column])
    return Given(x[:context], classes[:context], x[context:], count), classes[context:]


def fit_strengths(
    model: TabularTransformer,
    path: Path,
    settings: FitSettings = FULL,
    command: str = "",
    on_step: Callable[[int, int, float], None] = lambda *_: None,
) -> Array:
    """Fit the strengths of `Exponential`, one per head, from 0, and store them.

    The reference of a head is its mean entropy with the first 1,024 rows of the same context, as in
    the other arms. The loss is the log-loss after the best output temperature for the table, so
    that sharper attention is not fitted for the sake of sharper probabilities.

    Args:
        model: The model.
        path: File to write.
        settings: How to fit.
        command: The command behind it.
        on_step: Called with the step, the number of steps and the loss.

    Returns:
        Strengths [layers, heads].
    """
    generator = np.random.default_rng((settings.seed, 1))
    config = model.config
    strengths = torch.zeros(config.layers, config.heads, requires_grad=True)
    optimiser = torch.optim.Adam([strengths], lr=settings.learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    losses = []
    for step in range(settings.steps):
        size = settings.sizes[step % len(settings.sizes)]
        given, classes = draw_table(generator, size, settings.test_rows)
        reference = torch.from_numpy(_reference(model, given)).float()
        optimiser.zero_grad()
        policies: Any = {
            index: Exponential(reference[index], strengths[index]) for index in range(config.layers)
        }
        with sharpmax.sharpen(model, policies, example=example_of(model)):
            logits = logits_of(model, given.context, given.classes, given.test, given.count)
            loss = F.cross_entropy(
                logits * _best_factor(logits, classes), torch.from_numpy(classes)
            )
            loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            strengths.clamp_(0.0, 1.0)
        losses.append(round(loss.item(), 6))
        on_step(step + 1, settings.steps, loss.item())
    found = strengths.detach().double().numpy().round(4)
    write_sealed(
        path,
        KIND,
        {
            "command": command,
            "settings": asdict(settings),
            "versions": versions(("numpy", "torch", "scipy")),
            "strengths": found.tolist(),
            "losses": losses,
            "check": _check(model, found, settings),
        },
    )
    return found


def load_strengths(path: Path) -> Array:
    """Read the strengths [layers, heads] that `fit_strengths` stored."""
    return np.array(read_sealed(path, KIND)["strengths"])


def _reference(model: TabularTransformer, given: Given) -> Array:
    """Return the mean entropies of the heads with the first rows of a context."""
    first = Given(given.context[:TRAINED], given.classes[:TRAINED], given.test, given.count)
    return entropies(model, first)[1]


def _best_factor(logits: torch.Tensor, classes: Array) -> float:
    """Return the factor of the logits with the lowest loss; at it, its own gradient is 0."""
    plain = logits.detach().double().numpy()
    found = minimize_scalar(
        lambda t: log_loss(plain * np.exp(t), classes), bounds=(-3.0, 3.0), method="bounded"
    )
    return float(np.exp(found.x))


def _check(model: TabularTransformer, strengths: Array, settings: FitSettings) -> dict[str, Any]:
    """Compare the fit with plain softmax and one strength on fresh tables of the prior."""
    generator = np.random.default_rng((settings.seed, 2))
    found: dict[str, list[dict[str, float]]] = {"plain": [], "one": [], "fitted": []}
    for _ in range(settings.checked):
        given, classes = draw_table(generator, max(settings.sizes), settings.test_rows)
        reference = _reference(model, given)
        found["plain"].append(measure(given.predict(model), classes))
        for name, each in (
            ("one", np.full_like(strengths, settings.compared)),
            ("fitted", strengths),
        ):
            policies = policies_of("fitted", reference, strengths=each)
            found[name].append(measure(sharpened(model, policies, given).logits, classes))
    compared: dict[str, Any] = {}
    for name in ("one", "fitted"):
        compared[name] = {}
        for key in ("auc", "calibrated", "accuracy"):
            pairs = zip(found[name], found["plain"], strict=True)
            values = [each[key] - plain[key] for each, plain in pairs]
            low, high = bootstrap_interval(values)
            compared[name][key] = [round(x, 6) for x in (float(np.mean(values)), low, high)]
    return compared
