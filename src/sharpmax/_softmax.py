"""Softmax at the temperature that a policy gives each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax._arrays import Array
from sharpmax._statistics import Rows

if TYPE_CHECKING:
    from sharpmax.policies import Policy


def softmax(
    logits: Array, policy: Policy | None = None, axis: int = -1, where: Array | None = None
) -> Array:
    """Compute softmax(beta e) along `axis`, with the beta that `policy` gives each row.

    Args:
        logits: NumPy array, torch tensor or JAX array with at least one axis.
        policy: gives the inverse temperature of each row; None is plain softmax.
        axis: the axis of a row.
        where: booleans that broadcast to `logits`; False gives weight 0 and does not count.

    Returns:
        Weights of the kind, dtype and device of `logits`; they sum to one, or to zero in a row
        without visible logits. The computation is in single precision at least.

    Raises:
        ValueError, TypeError: as `sharpmax.statistics` does.

    Example:
        >>> import numpy as np
        >>> from sharpmax.policies import Constant
        >>> softmax(np.array([0.0, np.log(2.0)]), Constant(2.0)).round(3).tolist()
        [0.2, 0.8]
    """
    rows = Rows(logits, axis, where)
    return rows.weights(None if policy is None else policy.of_rows(rows))


def inverse_temperature(
    logits: Array, policy: Policy, axis: int = -1, where: Array | None = None
) -> Array:
    """Compute the inverse temperature beta = 1/theta that `policy` gives each row of `logits`.

    Arguments and errors are those of `softmax`.

    Returns:
        An array without the axis `axis`, in single precision at least; 1 for a row
        without visible logits.

    Example:
        >>> import numpy as np
        >>> from sharpmax.policies import Exponential
        >>> round(float(inverse_temperature(np.zeros(64), Exponential(np.log(16.0)))), 6)
        4.0
    """
    return policy.of_rows(Rows(logits, axis, where))
