"""The arms of the experiment: what each does with a context of labelled rows.

An arm of attention changes the temperature of the frozen model through `sharpmax.sharpen`. A remedy
is what a user does instead: fewer rows per pass, or another method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

import sharpmax
from experiments.tabular.model import TabularTransformer, predict, prepare
from sharpmax._arrays import Array as AnyArray
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Constant, EntropyTarget, Exponential, LogLength, Paper, Policy

__all__ = [
    "PLAIN", "REMEDIES", "TRAINED", "Given", "Predicted", "entropies", "example_of", "is_remedy",
    "policies_of", "remedy", "sharpened",
]  # fmt: skip

Array = np.ndarray[Any, Any]

TRAINED: Final = 1_024
"""Rows per table in the training of the model, to the next power of two."""
MEMBERS: Final = 8
"""Subsamples of the ensemble, and groups of test rows of the neighbours."""
PLAIN: Final = Constant(1.0)
"""Plain softmax through the kernel of the other arms, faster than PyTorch's own on many rows."""
REMEDIES: Final = ("ensemble", "neighbours", "boosting", "forest")


@dataclass(frozen=True, eq=False)
class Watched(Exponential, register=False):
    """`Exponential`, which also keeps the mean inverse temperature of each head."""

    means: list[Array] = field(default_factory=list)

    def inverse_temperature(self, statistics: RowStatistics, tempered: Any = None) -> AnyArray:
        beta = super().inverse_temperature(statistics, tempered)
        self.means.append(np.asarray(beta.mean(dim=(0, 2))))
        return beta


class Entropies:
    """Keep the mean entropy of every head, in nats; a recorder of `sharpmax.models.record`."""

    def __init__(self) -> None:
        self.means: list[Array] = []

    def record(self, layer: int, statistics: RowStatistics) -> None:
        """Receive the rows of a layer; layers come in order."""
        entropy: Any = statistics.entropy()
        self.means.append(entropy.mean(dim=(0, 2)).numpy())


@dataclass(frozen=True)
class Given:
    """What an arm predicts from: features and classes of the context, features of the test rows.

    Attributes:
        context: Features of the context, NaN where missing.
        classes: Classes 0, 1, … of the context.
        test: Features of the test rows.
        count: Number of classes.
    """

    context: Array
    classes: Array
    test: Array
    count: int

    def predict(
        self, model: TabularTransformer, rows: Any = ..., test: Any = ..., *, lean: bool = True
    ) -> Array:
        """Return the logits of the model with some rows of the context, for some test rows."""
        context, classes = self.context[rows], self.classes[rows]
        return predict(model, context, classes, self.test[test], self.count, lean=lean)


def entropies(model: TabularTransformer, given: Given) -> tuple[Array, Array]:
    """Predict with plain softmax; return the logits and the entropies [layers, heads]."""
    recorder = Entropies()
    with sharpmax.models.record(model, recorder):
        logits = given.predict(model, lean=False)
    return logits, np.stack(recorder.means)


def policies_of(
    arm: str,
    reference: Array,
    matched: Array | None = None,
    strengths: Array | None = None,
    *,
    watch: bool = True,
) -> Policy | Mapping[int | str, Policy | None]:
    """Return the policy of an arm, or one per layer.

    Args:
        arm: "log-length", "exponential-S" with a strength S, "fitted", "entropy-target", "paper",
            or one of the controls "matched" and "matched-heads".
        reference: Entropies of the heads at the trained size, [layers, heads].
        matched: For a control: the mean inverse temperatures of the adaptive arm, [layers, heads].
        strengths: For "fitted": the strength of each head, [layers, heads].
        watch: Keep the mean inverse temperatures of adaptive arms. Without, the kernel computes
            them itself, in two thirds of the time.

    Example:
        >>> import numpy as np
        >>> policies_of("exponential-0.125", np.ones((2, 4)))[1].strength
        0.125
    """
    name, _, strength = arm.partition("-") if arm.startswith("exponential") else (arm, "", "")
    layers = range(len(reference))
    adaptive = Watched if watch else Exponential
    match name:
        case "log-length":
            return LogLength(train_length=TRAINED)
        case "exponential":
            return {index: adaptive(reference[index], float(strength)) for index in layers}
        case "fitted" if strengths is not None:
            return {index: adaptive(reference[index], strengths[index]) for index in layers}
        case "entropy-target":
            return {index: EntropyTarget(reference[index]) for index in layers}
        case "paper":
            return Paper(warn=False)
        case "matched" | "matched-heads" if matched is not None:
            if name == "matched":
                return Constant(float(matched.mean()))
            return {index: Constant(matched[index]) for index in layers}
    raise ValueError(f"arm: expected the name of an arm, got {arm!r}")


def example_of(model: TabularTransformer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return small arguments of the model, by which its layers are found."""
    return torch.zeros(1, 3, model.config.features), torch.zeros(1, 2)


@dataclass(frozen=True)
class Predicted:
    """Logits of the test rows, and the mean inverse temperatures [layers, heads] if known."""

    logits: Array
    beta: Array | None = None


def sharpened(
    model: TabularTransformer, policy: Policy | Mapping[int | str, Policy | None], given: Given
) -> Predicted:
    """Predict with a policy on the attention of the model."""
    each_layer = policy.values() if isinstance(policy, Mapping) else ()
    watched = [each for each in each_layer if isinstance(each, Watched)]
    with sharpmax.sharpen(model, policy, example=example_of(model)):
        logits = given.predict(model, lean=not watched)
    if watched:
        return Predicted(logits, np.stack([np.mean(each.means, axis=0) for each in watched]))
    return Predicted(logits)


def is_remedy(arm: str) -> bool:
    """Tell whether an arm is a remedy, with any number of rows per pass."""
    return arm.partition("-")[0] in REMEDIES


def remedy(name: str, model: TabularTransformer, given: Given, seed: int) -> Predicted:
    """Predict by what a user does instead of sharpening.

    Args:
        name: "ensemble", the mean probability over disjoint subsamples; "neighbours", a context of
            the nearest rows for each of eight groups of test rows; "boosting"; or "forest". The
            first two take 1,024 rows per pass; "ensemble-512" takes 512.
        model: The model.
        given: What to predict from.
        seed: Seed of the split.
    """
    name, _, given_rows = name.partition("-")
    rows = int(given_rows or TRAINED)
    if name == "ensemble":
        members = min(MEMBERS, max(1, len(given.classes) // rows))
        parts = [slice(i * rows, (i + 1) * rows) for i in range(members)]
        logs = [log_softmax(given.predict(model, part), axis=1) for part in parts]
        return Predicted(logsumexp(logs, axis=0) - np.log(members))
    if name == "neighbours":
        return Predicted(_neighbours(model, given, rows, seed))
    kind: Any = HistGradientBoostingClassifier if name == "boosting" else RandomForestClassifier
    fitted = kind(random_state=seed).fit(given.context, given.classes)
    probabilities = np.zeros((len(given.test), given.count))
    probabilities[:, fitted.classes_] = fitted.predict_proba(given.test)
    # Forests give zeros, whose loss is infinite.
    return Predicted(np.log(np.clip(probabilities, 1e-3, None)))


def _neighbours(model: TabularTransformer, given: Given, rows: int, seed: int) -> Array:
    every = prepare(given.context, given.test, model.config.features)
    near, asked = every[: len(given.context)], every[len(given.context) :]
    groups = KMeans(MEMBERS, n_init=1, random_state=seed).fit(asked)
    logits = np.zeros((len(asked), given.count))
    for group, centre in enumerate(groups.cluster_centers_):
        own = groups.labels_ == group
        chosen = np.argsort(((near - centre) ** 2).sum(axis=1), kind="stable")[:rows]
        logits[own] = given.predict(model, chosen, own)
    return logits
