"""Results of max retrieval as heads would give them whose logits rise steeply with the priority."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sharpmax
from experiments.max_retrieval.records import Group, Record, Table, WeightsKind
from sharpmax import policies

CLASSES = 10
REFERENCE = 0.6
SLOPES = {"averaged": 44.0, "last": 34.0}
METHODS: dict[str, policies.Policy | None] = {
    "softmax": None,
    "paper": policies.Paper(warn=False),
    "exponential": policies.Exponential(REFERENCE),
    "entropy-target": policies.EntropyTarget(REFERENCE),
    "log-length": policies.LogLength(1.0, 16.0),
    "fixed-2": policies.Constant(2.0),
    "fixed-16": policies.Constant(16.0),
    "hard": policies.Hard(),
}


def draw_sets(n: int, sets: int) -> tuple[np.ndarray, np.ndarray]:
    """Priorities from large to small, and classes."""
    rng = np.random.default_rng(n)
    priorities = -np.sort(-rng.uniform(size=(sets, n)), axis=-1)
    return priorities, rng.integers(CLASSES, size=(sets, n))


def logits_of(priorities: np.ndarray, slope: float, seed: int) -> np.ndarray:
    """Scores of a head: steep in the priority, and a little wavy, otherwise for every seed."""
    return slope * (priorities + 0.0004 * np.sin((300 + 40 * seed) * priorities))


def right(weights: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Which sets are answered right."""
    one_hot = classes[..., None] == np.arange(CLASSES)
    mass = np.einsum("sn,snc->sc", weights, one_hot)
    # The answer blurs where classes have nearly the same mass, as behind a trained head.
    answers = np.argmax(mass >= mass.max(-1, keepdims=True) - 0.05, axis=-1)
    return np.asarray(answers == classes[:, 0])


def measure(
    method: str, n: int, slope: float, seeds: Iterable[int], sets: int
) -> tuple[float, ...]:
    priorities, classes = draw_sets(n, sets)
    shares = []
    for seed in seeds:
        logits = logits_of(priorities, slope + seed, seed)
        if method == "oracle":
            tried = [sharpmax.softmax(beta * logits) for beta in (1, 4, 16, 64, 256, 1024)]
            answered = np.any([right(weights, classes) for weights in tried], axis=0)
        else:
            answered = right(sharpmax.softmax(logits, METHODS.get(method)), classes)
        shares.append(float(answered.mean()))
    return tuple(shares)


def make_table(sizes: Iterable[int], seeds: tuple[int, ...], sets: int = 32) -> Table:
    """All groups, by a head whose slope stands for its training."""
    records = []

    def add(
        group: Group, recipe: str, method: str, weights: WeightsKind, slope: float, n: int
    ) -> None:
        trained_with = method if group == "trained" else "softmax"
        accuracy = measure(method, n, slope, seeds, sets)
        records.append(Record(method, weights, trained_with, recipe, group, n, sets, accuracy))

    for n in sizes:
        for weights, slope in SLOPES.items():
            for method in (*METHODS, "oracle"):
                add("inference", "standard-40k", method, weights, slope, n)
            for place, method in enumerate(("softmax", "paper", "ssmax", "sigmoid", "of-my-own")):
                add("trained", f"trained-{method}", method, weights, slope + 30 * place, n)
            for recipe, factor in (("standard-20k", 0.7), ("cosine", 2.0)):
                for method in ("softmax", "paper", "exponential"):
                    add("training", recipe, method, weights, factor * slope, n)
            for recipe, factor in (("near-ties", 2.0), ("near-ties+cosine", 4.0)):
                for method in ("softmax", "exponential", "hard"):
                    add("beyond", recipe, method, weights, factor * slope, n)
    usual = {"steps": 40_000, "smallest": 5, "largest": 16, "learning_rate": 1e-3}
    usual |= {"schedule": "constant", "weight_decay": 1e-3, "decoupled": True, "ties": None}
    return Table(
        command="python -m experiments.max_retrieval run",
        seeds=seeds,
        recipes={
            "standard-40k": usual,
            "standard-20k": usual | {"steps": 20_000},
            "cosine": usual | {"schedule": "cosine"},
        },
        records=tuple(records),
        versions={"sharpmax": "0.1", "numpy": "2.0"},
        machine={"system": "Linux", "processor": "Abacus <fast>", "processors": 2},
    )


def make_figures(sizes: Iterable[int]) -> dict[str, Any]:
    """What the figures are drawn from, of a head with the averaged slope."""
    sizes = list(sizes)
    slope = SLOPES["averaged"]
    names = ["softmax", "paper", "exponential"]
    weights: list[list[Any]] = [[] for _ in names]
    points: dict[str, list[Any]] = {"entropy": [], "inverse_temperature": [], "n": []}
    betas = np.geomspace(0.5, 2048.0, 60)
    for n in sizes:
        logits = logits_of(draw_sets(n, 32)[0], slope, 0)
        for place, name in enumerate(names):
            weights[place].append(sharpmax.softmax(logits, METHODS[name])[:, :16].tolist())
        largest = np.stack([sharpmax.softmax(beta * logits)[:, 0] for beta in betas])
        for row in range(32):
            if 0 < (best := int(largest[:, row].argmax())) < len(betas) - 1:
                points["entropy"].append(float(sharpmax.entropy(logits[row])))
                points["inverse_temperature"].append(float(betas[best]))
                points["n"].append(n)
    refit = np.polyfit(points["entropy"], points["inverse_temperature"], 4)
    return {
        "attention": {"sizes": sizes, "methods": names, "weights": weights},
        "fit": {
            **points,
            "published": list(policies.Paper.COEFFICIENTS),
            "refit": refit.tolist(),
            "reference": REFERENCE,
            "fitted_range": [min(points["entropy"]), max(points["entropy"])],
        },
        "command": "python -m experiments.max_retrieval figures",
        "seeds": [0],
        "versions": {"sharpmax": "0.1"},
        "machine": {"system": "Linux"},
    }


@pytest.fixture(scope="session")
def table() -> Table:
    return make_table((16, 128, 1024, 4096), seeds=(0, 1, 2))


@pytest.fixture(scope="session")
def figures() -> dict[str, Any]:
    return make_figures((16, 128, 1024, 4096))


@pytest.fixture(scope="session")
def small_table(table: Table) -> Table:
    """What a demonstration measures: one seed, one kind of weights, three methods."""
    shown = ("softmax", "paper", "exponential")
    records = tuple(
        Record(r.method, r.weights, r.trained_with, r.recipe, r.group, r.n, r.sets, r.accuracy[:1])
        for r in table.select(group="inference", weights="last")
        if r.method in shown
    )
    recipes = {"standard-40k": table.recipes["standard-40k"]}
    return replace(table, command="a demo", seeds=(0,), recipes=recipes, records=records)
