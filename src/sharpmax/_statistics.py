"""Measure rows of logits: maximum, mass and moment, from which the entropy follows.

For the visible logits e of a row, with m = max e:

    mass    l = sum exp(e - m)
    moment  s = sum (e - m) exp(e - m)
    entropy H = log l - s / l        (nats)

Statistics of two blocks of one row merge exactly, so a row can be measured in pieces, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

from sharpmax._arrays import Array, Namespace, broadcast, namespace

_INFINITY = float("inf")


class RowStatistics(NamedTuple):
    """Statistics of each row: four arrays of the shape of the logits without their row axis.

    A named tuple is a pytree of JAX and PyTorch, so it passes through `jit`, `vmap` and
    `torch.compile` unchanged.

    Attributes:
        maximum: the largest visible logit; -inf for an empty row.
        mass: the sum of exp(e - maximum); 0 for an empty row.
        moment: the sum of (e - maximum) exp(e - maximum), never positive.
        count: the number of visible logits, an integer.
    """

    maximum: Array
    mass: Array
    moment: Array
    count: Array

    def merge(self, other: RowStatistics) -> RowStatistics:
        """Merge the statistics of two blocks of the same rows.

        Exact and associative up to rounding: blocks can come in any order and grouping.

        Example:
            >>> import numpy as np, sharpmax
            >>> left, right = sharpmax.statistics(np.zeros(3)), sharpmax.statistics(np.zeros(5))
            >>> round(float(left.merge(right).entropy()), 6) == round(float(np.log(8)), 6)
            True
        """
        xp = namespace(*self, *other)
        maximum = xp.maximum(self.maximum, other.maximum)
        mass_here, moment_here = rescale(xp, self, maximum)
        mass_there, moment_there = rescale(xp, other, maximum)
        mass, moment = mass_here + mass_there, moment_here + moment_there
        return RowStatistics(maximum, mass, moment, self.count + other.count)

    def entropy(self) -> Array:
        """Return the Shannon entropy of each row, in nats: log(mass) - moment / mass.

        Between 0 and log(count); 0 for an empty row.
        """
        xp = namespace(*self)
        mass = xp.where(self.mass == 0, 1.0, self.mass)
        return xp.log(mass) - self.moment / mass

    def logsumexp(self) -> Array:
        """Return log sum exp(e) of each row; -inf for an empty row."""
        xp = namespace(*self)
        return self.maximum + xp.log(xp.where(self.mass == 0, 1.0, self.mass))


def statistics(logits: Array, axis: int = -1, where: Array | None = None) -> RowStatistics:
    """Compute maximum, mass, moment and count of each row of `logits`.

    Logits of -inf, and those where `where` is False, do not exist: they count neither in the
    entropy nor in `count`. A visible NaN makes its own row NaN and no other. A visible +inf is the
    limit of a growing logit: the +inf entries of a row share its weight evenly (mass is their
    number, moment is 0).

    Args:
        logits: NumPy array, torch tensor or JAX array with at least one axis.
        axis: the axis of a row.
        where: booleans that broadcast to `logits`; True means visible.

    Returns:
        Statistics without the axis `axis`: in the framework, on the device and in the dtype of
        `logits`, but in single precision at least (float16 and bfloat16 give float32).

    Raises:
        ValueError: for logits without an axis, an axis out of range, or a `where` that does not
            broadcast.
        TypeError: for complex logits, or arrays of two frameworks.

    Example:
        >>> import numpy as np
        >>> int(statistics(np.array([0.0, 0.0, -np.inf])).count)
        2
    """
    return Rows(logits, axis, where).statistics


def merge_all(blocks: Iterable[RowStatistics]) -> RowStatistics:
    """Merge the statistics of many blocks of the same rows.

    Takes a generator and keeps one state, so it can measure rows that do not fit in memory.

    Raises:
        ValueError: if there is no block.

    Example:
        >>> import numpy as np
        >>> blocks = (statistics(np.zeros(1000)) for _ in range(1000))
        >>> round(float(merge_all(blocks).entropy()), 4)
        13.8155
    """
    iterator = iter(blocks)
    first = next(iterator, None)
    if first is None:
        raise ValueError("blocks: expected at least one RowStatistics, got none")
    return reduce(RowStatistics.merge, iterator, first)


def entropy(logits: Array, axis: int = -1, where: Array | None = None) -> Array:
    """Compute the Shannon entropy of softmax(logits) of each row, in nats.

    Arguments, errors and the treatment of invisible logits are those of `statistics`.

    Example:
        >>> import numpy as np
        >>> round(float(entropy(np.array([1.0, 1.0]))), 4)
        0.6931
    """
    return statistics(logits, axis, where).entropy()


class Rows:
    """Rows of logits, measured once, with weights at any inverse temperature.

    Everything is held relative to the maximum of the row (`gap`, never positive), so that
    beta (e - m) is exact near the maximum and cannot overflow, whatever the magnitude of e.
    """

    def __init__(self, logits: Array, axis: int = -1, where: Array | None = None) -> None:
        self.xp = xp = namespace(logits, where)
        logits = _checked(xp, logits, axis)
        self._logits_dtype_of = logits
        self.axis = axis
        logits = xp.promote(logits)

        visible = logits != -_INFINITY
        if where is not None:
            visible = visible & _broadcast_where(xp, where, logits)
        maximum = xp.max(xp.where(visible, logits, -_INFINITY), axis)

        # In a row with +inf, only the +inf entries have weight; in all others every visible one.
        self._weighed = visible & ((maximum != _INFINITY) | (logits == _INFINITY))
        base = xp.where(xp.isinf(maximum), 0.0, maximum)
        finite = xp.where(self._weighed & ~xp.isinf(logits), logits, base)
        self.gap = _gap(xp, finite, base)

        mass, moment = self._mass_and_moment(xp.where(self._weighed, xp.exp(self.gap), 0.0))
        count = xp.squeeze(xp.sum(visible, axis), axis)
        self.statistics = RowStatistics(xp.squeeze(maximum, axis), mass, moment, count)

    def tempered(self, inverse_temperature: Array) -> tuple[Array, Array]:
        """Return entropy of softmax(beta e) and variance of e under it, for finite beta."""
        xp = self.xp
        beta = self._along_rows(inverse_temperature)
        unnormalised = self._unnormalised(beta)
        mass, moment = self._mass_and_moment(unnormalised)
        mass = xp.where(mass == 0, 1.0, mass)
        mean = moment / mass
        # The weight comes first in the products: where it is 0, a huge deviation must not matter.
        deviation = self.gap - xp.expand_dims(mean, self.axis)
        variance = xp.squeeze(xp.sum(unnormalised * deviation * deviation, self.axis), self.axis)
        return xp.log(mass) - inverse_temperature * mean, variance / mass

    def log_mass(self, inverse_temperature: Array) -> Array:
        """log sum exp(beta (e - m)) of each row; 0 for an empty row."""
        xp = self.xp
        mass, _ = self._mass_and_moment(self.unnormalised(inverse_temperature))
        return xp.log(xp.where(mass == 0, 1.0, mass))

    def logsumexp(self, inverse_temperature: Array) -> Array:
        """log sum exp(beta e) of each row; -inf for an empty row."""
        return inverse_temperature * self.statistics.maximum + self.log_mass(inverse_temperature)

    def weights(self, inverse_temperature: Array | None = None) -> Array:
        """Return softmax(beta e) in the dtype of the logits; 0 for invisible logits."""
        xp = self.xp
        if inverse_temperature is None:
            unnormalised = xp.where(self._weighed, xp.exp(self.gap), 0.0)
        else:
            unnormalised = self.unnormalised(inverse_temperature)
        mass = xp.sum(unnormalised, self.axis)
        return xp.astype(unnormalised / xp.where(mass == 0, 1.0, mass), self._logits_dtype_of)

    def unnormalised(self, inverse_temperature: Array) -> Array:
        """Return exp(beta (e - m)); 0 for invisible logits."""
        return self._unnormalised(self._along_rows(inverse_temperature))

    def _along_rows(self, values: Array) -> Array:
        return self.xp.expand_dims(values, self.axis)

    def _mass_and_moment(self, unnormalised: Array) -> tuple[Array, Array]:
        xp, axis = self.xp, self.axis
        return (
            xp.squeeze(xp.sum(unnormalised, axis), axis),
            xp.squeeze(xp.sum(unnormalised * self.gap, axis), axis),
        )

    def _unnormalised(self, beta: Array) -> Array:
        """exp(beta (e - m)) of visible logits; at beta = inf only the maxima remain."""
        xp = self.xp
        hard = xp.isinf(beta)
        finite = xp.where(hard, 1.0, beta)
        # Farther away than this every weight is zero, and the product would overflow.
        root = xp.largest_root(self.gap)
        farthest = -0.25 * root / xp.clip(finite, 1.0, None) * root
        soft = xp.exp(finite * xp.maximum(self.gap, farthest))
        return xp.where(self._weighed & ~(hard & (self.gap < 0)), soft, 0.0)


def _gap(xp: Namespace, logits: Array, maximum: Array) -> Array:
    """Logits - maximum, where logits <= maximum, without overflow for numbers of any size."""
    halved = 0.5 * logits - 0.5 * maximum
    return 2.0 * xp.clip(halved, -0.5 * xp.largest_root(halved), None)


def rescale(xp: Namespace, block: RowStatistics, maximum: Array) -> tuple[Array, Array]:
    """Return mass and moment of `block`, relative to a larger or equal maximum."""
    base = xp.where(xp.isinf(maximum), 0.0, maximum)
    gap = _gap(xp, xp.where(xp.isinf(block.maximum) | xp.isinf(maximum), base, block.maximum), base)
    overshadowed = (maximum == _INFINITY) & (block.maximum != _INFINITY)
    factor = xp.where(overshadowed, 0.0, xp.exp(gap))
    return factor * block.mass, factor * (block.moment + gap * block.mass)


def _checked(xp: Namespace, logits: Any, axis: int) -> Array:
    logits = xp.asarray(logits)
    if "complex" in str(logits.dtype):
        raise TypeError(f"logits: expected real numbers, got {logits.dtype}")
    if logits.ndim == 0:
        raise ValueError("logits: expected at least one axis, got a single number")
    if not -logits.ndim <= axis < logits.ndim:
        shape = tuple(logits.shape)
        raise ValueError(f"axis: expected an axis of logits of shape {shape}, got {axis}")
    return logits


def _broadcast_where(xp: Namespace, where: Any, logits: Array) -> Array:
    where = xp.asarray(where)
    if "bool" not in str(where.dtype):
        raise TypeError(f"where: expected booleans, got {where.dtype}")
    return broadcast("where", where, tuple(logits.shape))
