"""Evaluate the closed forms that fast implementations know.

A form is a formula with a fixed list of parameters, its columns. A policy that has a form is
evaluated here, by NumPy, PyTorch or JAX, and its derivatives follow from automatic differentiation
of this code. Compiled kernels evaluate the same formulas and know a form by its number.

    CONSTANT    c                           beta = c
    RAMPS       b, (knot, slope, width)...  log beta = b + sum of slope * clip(H - knot, 0, width)
    POLYNOMIAL  threshold, guard, c...      beta = max(1, p(h)) for h = H - guard n > threshold
    LENGTH      a                           beta = max(1, a log n)
    TARGET      target, limit               beta solves H(softmax(beta e)) = target
    HARD                                    beta = inf

H is the entropy of a row in nats, n is the number of its visible keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics


class Form(IntEnum):
    """The closed forms of a policy. Kernels use the same numbers."""

    GIVEN = 0
    """Beta comes in as an array: no closed form."""
    CONSTANT = 1
    RAMPS = 2
    POLYNOMIAL = 3
    LENGTH = 4
    TARGET = 5
    HARD = 6

    def evaluate(self, columns: Sequence[Array | float], statistics: RowStatistics) -> Array:
        """Compute beta from the columns, which broadcast against the rows.

        Raises:
            ValueError: for GIVEN and TARGET, which the statistics alone do not determine.
        """
        if self == Form.CONSTANT:
            return columns[0]
        if self == Form.HARD:
            return math.inf
        if self == Form.LENGTH:
            return _length(columns[0], statistics)
        if self == Form.RAMPS:
            return _ramps(columns, statistics.entropy())
        if self == Form.POLYNOMIAL:
            return _polynomial(columns, statistics)
        raise ValueError(f"{self.name}: the statistics of a row do not determine beta")


class KernelForm(NamedTuple):
    """A closed form with its columns: numbers, or arrays with one entry per head.

    `sharpmax.policies.Form` lists the columns of each form.
    """

    form: Form
    columns: Sequence[Array | float]

    def evaluate(self, statistics: RowStatistics) -> Array:
        """Compute beta of each row."""
        return self.form.evaluate(self.columns, statistics)


def _length(factor: Array | float, statistics: RowStatistics) -> Array:
    xp = namespace(*statistics, factor)
    count = xp.astype(xp.clip(statistics.count, 1, None), like=statistics.mass)
    return xp.clip(xp.asarray(factor, like=statistics.mass) * xp.log(count), 1.0, None)


def _ramps(columns: Sequence[Array | float], entropy: Array) -> Array:
    xp = namespace(entropy, *columns)
    start, *rest = columns
    logarithm = 0.0 * entropy + xp.asarray(start, like=entropy)
    for knot, slope, width in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        excess = xp.clip(entropy - xp.asarray(knot, like=entropy), 0.0, None)
        if not (isinstance(width, float) and math.isinf(width)):
            excess = xp.clip(excess, None, xp.asarray(width, like=entropy))
        logarithm = logarithm + xp.asarray(slope, like=entropy) * excess
    # A selection rather than a clip: its derivative at 0 is 1, so that a slope of 0 can grow.
    return xp.exp(xp.where(logarithm < 0, 0.0, logarithm))


def _polynomial(columns: Sequence[Array | float], statistics: RowStatistics) -> Array:
    threshold, guard, *coefficients = columns
    entropy = statistics.entropy()
    xp = namespace(entropy, *columns)
    if not (isinstance(guard, float) and guard == 0.0):
        entropy = entropy - xp.asarray(guard, like=entropy) * statistics.count
    value = 0.0 * entropy
    for coefficient in coefficients:
        value = value * entropy + xp.asarray(coefficient, like=entropy)
    above = entropy > xp.asarray(threshold, like=entropy)
    return xp.where(above, xp.clip(value, 1.0, None), 0.0 * entropy + 1.0)
