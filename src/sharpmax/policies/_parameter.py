"""Declare, check and read the parameters of policies."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from sharpmax._arrays import Array, namespace


class Bounds(NamedTuple):
    """The values that a parameter may take."""

    above: float | None = None
    at_least: float | None = None

    def check(self, name: str, value: Array | float) -> None:
        """Raise a ValueError that names the parameter, what was expected and what came."""
        expected = "a finite number"
        wrong = (abs(value) == float("inf")) | (value != value)
        if self.above is not None:
            expected += f" above {self.above:g}"
            wrong = wrong | (value <= self.above)
        if self.at_least is not None:
            expected += f" of at least {self.at_least:g}"
            wrong = wrong | (value < self.at_least)
        if wrong if isinstance(wrong, bool) else namespace(wrong).any(wrong):
            raise ValueError(f"{name}: expected {expected}, got {value}")


def parameter(
    default: Any = ...,
    *,
    above: float | None = None,
    at_least: float | None = None,
    axes: int = 0,
) -> Any:
    """Declare a parameter of a policy: a number, or an array with one entry per head.

    Args:
        default: the default value; without it the parameter is required.
        above: the parameter has to be above this.
        at_least: the parameter has to be at least this.
        axes: how many axes the parameter has for a single head, as the knots of a curve have one.
            They come last; an axis before them runs over heads.

    Returns:
        A field of a dataclass.
    """
    metadata = {"bounds": Bounds(above, at_least), "axes": axes}
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def as_parameter(name: str, value: Any) -> Array | float:
    """`value` as a float, or as an array of the framework that it came in."""
    xp = namespace(value)
    if isinstance(value, bool | str | bytes | None):
        raise TypeError(f"{name}: expected a number or an array of numbers, got {value!r}")
    try:
        array = xp.asarray(value)
        if xp.name == "numpy":
            array = np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: expected a number or an array of numbers, got {value!r}"
        ) from None
    if xp.name == "numpy":
        # A copy, so that the policy does not change when the caller's array does.
        return float(array) if array.ndim == 0 else read_only(array.copy())
    return array


def read_only(value: Any) -> Any:
    """Protect an array of NumPy, so that its policy stays as it is; tensors may be learned."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def as_numbers(value: Any) -> np.ndarray[Any, Any]:
    """A parameter as plain numbers, whatever framework, device or graph it belongs to."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value, dtype=np.float64)


def as_plain(value: Any) -> Any:
    """Numbers, strings and nested lists instead of arrays."""
    return value.tolist() if hasattr(value, "tolist") else value
