"""Measure how the largest coefficient of a bounded row falls with its length, under each policy.

The row is synthetic: one item, the target, has the largest logit that the spread allows, and its
competitors are drawn uniformly from the spread below it. Longer rows contain the shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from sharpmax import policies
from sharpmax._files import machine, read_sealed, versions, write_sealed
from sharpmax._statistics import Rows, statistics
from sharpmax.theory import DispersionBounds, dispersion_bounds

__all__ = ["SIZES", "Curve", "Dispersion", "compared_policies", "measure_dispersion"]

KIND = "dispersion, format 1"

SIZES = tuple(2**power for power in range(4, 21))
"""From 16 to 1,048,576 items, doubling."""

_REFERENCE_ROWS = 1024
"""Rows of the training length for the mean of the reference entropy."""

_FITTED_ROWS = 64
"""Rows per length for the fitted policy."""

_FITTED_TO = 16
"""The fitted policy sees lengths up to this multiple of the training length."""


@dataclass(frozen=True)
class Curve:
    """The effect of one policy on the row as it grows.

    Attributes:
        name: Name of the policy, as the table and the figure show it.
        policy: The policy.
        largest: The largest coefficient at each size, the median over the rows.
        inverse_temperature: The inverse temperature beta at each size, the median over the rows.
    """

    name: str
    policy: policies.Policy
    largest: tuple[float, ...]
    inverse_temperature: tuple[float, ...]


@dataclass(frozen=True)
class Dispersion:
    """The largest coefficient against the length, for plain softmax and for each policy.

    Attributes:
        spread: Largest logit minus smallest possible one.
        seed: Seed of the competitors.
        rows: How many rows were measured.
        train_length: The length whose sharpness the policies are to restore.
        reference: Mean entropy at that length, in nats.
        fitted_length: The longest rows that the fitted policy saw.
        sizes: The lengths.
        bounds: The bounds of Lemma 2.1 at temperature 1, one pair per length.
        curves: Plain softmax first, then one curve per policy.
    """

    spread: float
    seed: int
    rows: int
    train_length: int
    reference: float
    fitted_length: int
    sizes: tuple[int, ...]
    bounds: DispersionBounds
    curves: tuple[Curve, ...]

    @property
    def description(self) -> str:
        """Two sentences for captions."""
        return (
            f"One target at logit {self.spread:g}, n - 1 competitors drawn uniformly from"
            f" [0, {self.spread:g}]: median of {self.rows} rows, seed {self.seed}."
            " LogLength, Monotone, Exponential and EntropyTarget are set to the sharpness of"
            f" n = {self.train_length}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "experiment": "dispersion",
            "spread": self.spread,
            "seed": self.seed,
            "rows": self.rows,
            "train_length": self.train_length,
            "reference_entropy": self.reference,
            "fitted_length": self.fitted_length,
            "sizes": list(self.sizes),
            "lower_bound": np.asarray(self.bounds.lower).tolist(),
            "upper_bound": np.asarray(self.bounds.upper).tolist(),
            "curves": [
                {
                    "name": curve.name,
                    "policy": curve.policy.to_dict(),
                    "largest_coefficient": list(curve.largest),
                    # JSON has no infinity: hard attention has no finite inverse temperature.
                    "inverse_temperature": [
                        beta if np.isfinite(beta) else None for beta in curve.inverse_temperature
                    ],
                }
                for curve in self.curves
            ],
        }

    def save(self, path: Path, command: str) -> Path:
        """Write the measurement with the command and the versions behind it, sealed."""
        made = {"command": command, "versions": versions(("numpy",)), "machine": machine()}
        return write_sealed(path, KIND, made | self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            DamagedFileError: The file is truncated, was edited, or is another kind of file.
        """
        data = read_sealed(path, KIND)
        return cls(
            spread=data["spread"],
            seed=data["seed"],
            rows=data["rows"],
            train_length=data["train_length"],
            reference=data["reference_entropy"],
            fitted_length=data["fitted_length"],
            sizes=tuple(data["sizes"]),
            bounds=dispersion_bounds(data["sizes"], data["spread"]),
            curves=tuple(
                Curve(
                    each["name"],
                    policies.Policy.from_dict(each["policy"]),
                    tuple(each["largest_coefficient"]),
                    tuple(np.inf if b is None else b for b in each["inverse_temperature"]),
                )
                for each in data["curves"]
            ),
        )


def compared_policies(
    reference: float, train_length: int, fitted: policies.Policy
) -> dict[str, policies.Policy]:
    """Return every policy, set to restore the sharpness of the training length.

    Args:
        reference: Entropy of the row at the training length, in nats.
        train_length: That length.
        fitted: A policy fitted to data.

    Returns:
        The policies by name, plain softmax first.

    Example:
        >>> fitted = policies.Monotone(entropies=[2.0, 4.0], inverse_temperatures=[1.0, 8.0])
        >>> list(compared_policies(2.0, 16, fitted))[:3]
        ['plain softmax', 'Constant', 'Paper']
    """
    return {
        "plain softmax": policies.Identity(),
        "Constant": policies.Constant(2.0),
        "Paper": policies.Paper(warn=False),
        "LogLength": policies.LogLength(train_length=train_length),
        "Monotone": fitted,
        "Exponential": policies.Exponential(reference),
        "EntropyTarget": policies.EntropyTarget(reference),
        "Hard": policies.Hard(),
    }


def measure_dispersion(
    spread: float = 5.69,
    *,
    sizes: Sequence[int] = SIZES,
    train_length: int = 16,
    rows: int = 5,
    seed: int = 0,
    compared: Mapping[str, policies.Policy] | None = None,
) -> Dispersion:
    """Measure the largest coefficient of a bounded row at growing lengths, under each policy.

    The default spread is the mean over the heads of Gemma 2B in the paper.

    Args:
        spread: Largest logit minus smallest possible one, above 0.
        sizes: The lengths, each at least 1.
        train_length: The length whose mean entropy the policies take as their reference.
        rows: Number of rows; the median over them is reported.
        seed: Seed of the draw.
        compared: Policies by name; None compares all of them.

    Returns:
        The measurement.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> measured = measure_dispersion(sizes=(16, 1024), rows=3)
        >>> plain = measured.curves[0]
        >>> plain.largest[1] < plain.largest[0] / 32
        True
    """
    if not 0 < spread < np.inf:
        raise ValueError(f"spread: expected a finite number above 0, got {spread}")
    sizes = tuple(sizes)
    if not sizes:
        raise ValueError("sizes: expected at least one, got none")
    # A single item has no competitors, so there is no sharpness to restore.
    for name, number, least in (
        ("sizes", min(sizes), 1),
        ("train_length", train_length, 2),
        ("rows", rows, 1),
        ("seed", seed, 0),
    ):
        if number < least:
            raise ValueError(f"{name}: expected whole numbers of at least {least}, got {number}")
    bounds = dispersion_bounds(sizes, spread)

    # Separate streams: more rows or other sizes do not change the reference.
    reference_stream, fit_stream, *row_streams = np.random.default_rng(seed).spawn(2 + rows)
    reference = float(
        statistics(_draw(reference_stream, spread, (_REFERENCE_ROWS, train_length)))
        .entropy()
        .mean()
    )
    if compared is None:
        fitted = _fit(fit_stream, spread, reference, train_length)
        compared = compared_policies(reference, train_length, fitted)

    largest = np.empty((len(compared), rows, len(sizes)))
    beta = np.empty_like(largest)
    for row, stream in enumerate(row_streams):
        logits = _draw(stream, spread, (max(sizes),))
        for column, size in enumerate(sizes):
            measured = Rows(logits[:size])
            for index, policy in enumerate(compared.values()):
                inverse_temperature = policy.of_rows(measured)
                largest[index, row, column] = measured.weights(inverse_temperature).max()
                beta[index, row, column] = inverse_temperature
    largest, beta = np.median(largest, axis=1), np.median(beta, axis=1)
    return Dispersion(
        spread=float(spread),
        seed=seed,
        rows=rows,
        train_length=train_length,
        reference=reference,
        fitted_length=_FITTED_TO * train_length,
        sizes=sizes,
        bounds=bounds,
        curves=tuple(
            Curve(name, policy, tuple(largest[index].tolist()), tuple(beta[index].tolist()))
            for index, (name, policy) in enumerate(compared.items())
        ),
    )


def _fit(
    stream: np.random.Generator, spread: float, reference: float, train_length: int
) -> policies.Policy:
    """Fit a curve through the inverse temperatures that restore the reference at moderate lengths.

    It is constant beyond them, as a policy from data has to be where it saw none.
    """
    entropies, betas = [], []
    length = train_length
    while length <= _FITTED_TO * train_length:
        rows = Rows(_draw(stream, spread, (_FITTED_ROWS, length)))
        entropies.append(rows.statistics.entropy())
        betas.append(policies.EntropyTarget(reference).of_rows(rows))
        length *= 2
    return policies.Monotone.fit(
        np.concatenate(entropies), np.concatenate(betas), outside="constant"
    )


def _draw(stream: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Any:
    """Draw competitors uniformly over the spread, with the target first in each row."""
    logits = stream.uniform(0.0, spread, size=shape)
    logits[..., 0] = spread
    return logits
