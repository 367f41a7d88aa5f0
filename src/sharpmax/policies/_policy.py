"""What a policy is: the rule that says how sharp a row is to be."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import Rows, RowStatistics

FORMAT = 1
"""Version of the JSON form. It grows when an older library could no longer read it rightly."""

Tempered = Callable[[Array], tuple[Array, Array]]
"""beta of each row -> (entropy of softmax(beta e), variance of e under it), of each row."""

_registry: dict[str, type[Policy]] = {}


class EntropyRangeWarning(UserWarning):
    """Rows have entropies for which a policy was not made."""


class EntropyRange(NamedTuple):
    """The entropies, in nats, for which a policy was made, and what it does outside of them."""

    lowest: float
    highest: float
    outside: str


@dataclass(frozen=True, eq=False)
class Policy(ABC):
    """A rule that gives each row an inverse temperature beta = 1/theta from its statistics.

    A policy never flattens: beta >= 1 (`Constant` alone may, below 1). Parameters are numbers,
    or arrays that broadcast against the rows, that is the logits without their row axis; in
    `sharpmax.attention` a parameter with one axis has one entry per query head. They may be
    tensors that require gradients.

    A policy of your own is a frozen dataclass that derives from this class, names its parameters
    with `parameter(...)` and defines `inverse_temperature`.
    """

    needs_logits: ClassVar[bool] = False
    """Whether the rule has to weigh the row again, beyond its statistics."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _registry[cls.__name__] = cls

    def __post_init__(self) -> None:
        for entry in fields(self):
            if bounds := entry.metadata.get("bounds"):
                name = f"{type(self).__name__}.{entry.name}"
                value = _as_parameter(name, getattr(self, entry.name))
                bounds.check(name, value)
                object.__setattr__(self, entry.name, value)

    @abstractmethod
    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        """The inverse temperature of each row.

        Args:
            statistics: of the untempered rows.
            tempered: weighs the rows again at an inverse temperature; always given to a policy
                that says `needs_logits`.

        Returns:
            An array, or a number, that broadcasts against the rows.
        """

    @property
    def entropy_range(self) -> EntropyRange:
        """For which entropies the policy was made, and what it does outside of them."""
        return EntropyRange(0.0, float("inf"), "nothing lies outside")

    def of_rows(self, rows: Rows) -> Array:
        """The inverse temperature of `rows`; 1 where there is nothing in a row."""
        xp, measured = rows.xp, rows.statistics
        beta = self.inverse_temperature(measured, rows.tempered)
        beta = xp.broadcast_to(xp.asarray(beta, like=measured.mass), tuple(measured.mass.shape))
        return xp.where(measured.count == 0, 1.0, beta)

    def over_queries(self) -> Self:
        """This policy with an axis appended to each array: from heads to (heads, queries)."""
        return self._map(lambda value: value[..., None])

    def _map(self, change: Callable[[Array], Array]) -> Self:
        """A copy with every array parameter changed; the checks have been made before."""
        copy = object.__new__(type(self))
        for entry in fields(self):
            value = getattr(self, entry.name)
            is_array = "bounds" in entry.metadata and np.ndim(value) > 0
            object.__setattr__(copy, entry.name, change(value) if is_array else value)
        return copy

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain Python data, ready for JSON."""
        return {
            "format": FORMAT,
            "policy": type(self).__name__,
            "parameters": {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)},
        }

    def to_json(self) -> str:
        """The policy as JSON; `Policy.from_json` reads it.

        Example:
            >>> from sharpmax.policies import Exponential, Policy
            >>> Policy.from_json(Exponential(reference=1.5).to_json())
            Exponential(reference=1.5, strength=1.0)
        """
        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Policy:
        """Read what `to_json` wrote.

        Raises:
            ValueError: for text that is not JSON, an unknown policy or parameter, a value out of
                range, or a format newer than this version of the library reads.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"policy: expected JSON, got text that is not: {error}") from None
        return Policy.from_dict(data)

    @staticmethod
    def from_dict(data: Any) -> Policy:
        """Read what `to_dict` gave.

        Raises:
            ValueError: as `from_json` does.
        """
        if not isinstance(data, dict) or not {"format", "policy", "parameters"} <= data.keys():
            raise ValueError(
                f"policy: expected an object with format, policy and parameters, got {data!r}"
            )
        if not isinstance(data["format"], int) or data["format"] > FORMAT:
            raise ValueError(
                f"policy: expected format {FORMAT} or older, got {data['format']!r}: "
                "written by a newer sharpmax, which is needed to read it"
            )
        kind = _registry.get(data["policy"])
        if kind is None:
            known = ", ".join(sorted(_registry))
            raise ValueError(f"policy: expected one of {known}, got {data['policy']!r}")
        names = {entry.name for entry in fields(kind)}
        if unknown := data["parameters"].keys() - names:
            raise ValueError(
                f"{kind.__name__}: expected parameters among {sorted(names)}, got {sorted(unknown)}"
            )
        try:
            return kind(**data["parameters"])
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.to_dict())))


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
    default: Any = ..., *, above: float | None = None, at_least: float | None = None
) -> Any:
    """A field of a policy that is a number, or an array over heads, within bounds."""
    metadata = {"bounds": Bounds(above, at_least)}
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def _as_parameter(name: str, value: Any) -> Array | float:
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
        # A copy, so that a policy stays what it is when the caller's array changes.
        return float(array) if array.ndim == 0 else array.copy()
    return array


def _plain(value: Any) -> Any:
    """Numbers, strings and nested lists instead of arrays."""
    return value.tolist() if hasattr(value, "tolist") else value
