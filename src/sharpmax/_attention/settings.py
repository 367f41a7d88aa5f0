"""Check the numbers of an attention and resolve its defaults, for tensors and arrays alike."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, Literal, NamedTuple

Alignment = Literal["upper_left", "lower_right"]
SinkRole = Literal["key", "apart"]

_FARTHEST = 1 << 40
"""No window has to reach farther; sums of it and a position stay integers of 64 bits."""


_LARGEST = int(sys.float_info.max)


class Settings(NamedTuple):
    """The numbers of one attention, in the order in which the kernels read them."""

    scale: float
    softcap: float
    """0 for none."""
    left: int
    """How far back a query sees; -1 for any distance."""
    right: int
    offset: int
    """The position of query 0 among the keys."""
    sink_counted: bool


def resolve(
    queries: int,
    keys: int,
    width: int,
    smallest: float,
    *,
    is_causal: bool,
    alignment: Any,
    scale: Any,
    softcap: Any,
    sink_role: Any,
    window: Any,
) -> Settings:
    """Check the arguments of attention that are numbers or names.

    `smallest` is the smallest normal number of the dtype of the statistics.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if scale is None:
        scale = 1.0 / math.sqrt(max(width, 1))
    else:
        scale = number("scale", scale)
        # Beyond four times the inverse of the smallest number there are none.
        if scale != 0 and not smallest <= abs(scale) < 4 / smallest:
            raise ValueError(
                f"scale: expected 0 or a normal number of the dtype of the statistics, got {scale}"
            )
    if softcap is not None:
        softcap = number("softcap", softcap)
        if softcap < smallest:
            raise ValueError(f"softcap: expected a number of at least {smallest}, got {softcap!r}")
    if alignment not in ("upper_left", "lower_right"):
        raise ValueError(f"alignment: expected 'upper_left' or 'lower_right', got {alignment!r}")
    if sink_role not in ("key", "apart"):
        raise ValueError(f"sink_role: expected 'key' or 'apart', got {sink_role!r}")
    if window is not None:
        window = _whole("window", window)
        if window < 1:
            raise ValueError(f"window: expected at least 1, got {window}")
    reach = -1 if window is None else min(window, _FARTHEST) - 1
    return Settings(
        float(scale),
        0.0 if softcap is None else float(softcap),
        left=reach,
        right=0 if is_causal else reach,
        offset=keys - queries if alignment == "lower_right" else 0,
        sink_counted=sink_role == "key",
    )


def check_heads(heads: int, key_heads: int, enable_gqa: bool) -> None:
    """Check that the key heads serve the query heads."""
    if not enable_gqa:
        equal("key: heads (enable_gqa is False)", key_heads, heads)
    elif heads % key_heads if key_heads else heads:
        raise ValueError(
            f"key: expected heads that divide the {heads} query heads, got {key_heads}"
        )


def number(name: str, value: Any) -> float:
    """Return `value` as a float, if it is a number of any kind: of Python, NumPy or PyTorch."""
    # Those of a graph stay symbols.
    if type(value) not in (int, float) and type(value).__name__ not in ("SymInt", "SymFloat"):
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise TypeError(f"{name}: expected a number, got {value!r}")
        value = float(value)
    elif type(value) is int and abs(value) > _LARGEST:
        raise ValueError(f"{name}: expected a finite number, got one beyond the range of floats")
    found: float = value
    # In this form a compiler can follow it: infinity and NaN leave NaN.
    if found - found != 0:
        raise ValueError(f"{name}: expected a finite number, got {found!r}")
    return found


def _whole(name: str, value: Any) -> int:
    """`value` as an integer, if it is one of any kind."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer or None, got {value!r}")
    return operator.index(value)


def equal(name: str, got: int, expected: int) -> None:
    """Raise a ValueError unless the two are the same."""
    if got != expected:
        raise ValueError(f"{name}: expected {expected}, got {got}")
