"""Define what a policy is: a rule from the statistics of a row to its inverse temperature."""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax._files import RefusedError, parse_json
from sharpmax._statistics import Rows, RowStatistics
from sharpmax.policies._forms import KernelForm
from sharpmax.policies._parameter import as_numbers, as_parameter, as_plain, read_only

FORMAT = 1
"""Version of the JSON form. It grows when an older library could no longer read it correctly."""

Tempered = Callable[[Array], tuple[Array, Array]]
"""beta of each row -> (entropy of softmax(beta e), variance of e under it), for each row."""

_registry: dict[str, type[Policy]] = {}
definition_listeners: list[Callable[[type[Policy]], None]] = []


class EntropyRangeWarning(UserWarning):
    """Warn that rows have entropies outside the range of a policy."""


class EntropyRange(NamedTuple):
    """The range of entropies, in nats, that a policy is meant for, and what it does outside."""

    lowest: float
    highest: float
    outside: str


class Neutral(NamedTuple):
    """The value of one parameter at which beta is exactly 1 for every row.

    Attributes:
        name: the parameter.
        value: its neutral value.
        tolerance: how far the parameter may be from it and still count as no change.
    """

    name: str
    value: float
    tolerance: float = 0.0


@dataclass(frozen=True, eq=False)
class Policy(ABC):
    """A rule that gives each row an inverse temperature beta = 1/theta from its statistics.

    No policy but `Constant` flattens: beta >= 1. Parameters are numbers, or arrays that broadcast
    against the rows, that is, against the logits without their last axis. In `sharpmax.attention`
    a parameter with one axis has one entry per query head.

    A policy does not change: it keeps its own copy of numbers, lists and NumPy arrays, which cannot
    be written to. A PyTorch tensor is kept as it is, since it may be learned: the policy follows
    it.

    To write a policy of your own, derive a frozen dataclass from this class, declare its
    parameters with `parameter(...)` and define `inverse_temperature`. It then works with every
    implementation of attention, with `sharpmax.sharpen` and in JSON. Everything else is optional:
    set `neutral` if one value of a parameter switches the policy off, and define `kernel_form` if
    the rule is one of the forms that fast implementations evaluate themselves.

    Example:
        >>> from dataclasses import dataclass
        >>> import numpy as np, sharpmax
        >>> from sharpmax.policies import Neutral, Policy, parameter
        >>> @dataclass(frozen=True, eq=False)
        ... class Linear(Policy):
        ...     slope: float = parameter(1.0, at_least=0.0)
        ...     neutral = Neutral("slope", 0.0)
        ...
        ...     def inverse_temperature(self, statistics, tempered=None):
        ...         return 1.0 + self.slope * statistics.entropy()
        >>> round(float(sharpmax.inverse_temperature(np.zeros(16), Linear(2.0))), 4)
        6.5452
    """

    needs_logits: ClassVar[bool] = False
    """Whether the rule needs the tempered rows in addition to their statistics."""

    neutral: ClassVar[Neutral | None] = None
    """The parameter value that switches the policy off, or None if there is none."""

    def __init_subclass__(cls, register: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for listener in definition_listeners:
            listener(cls)
        if register:  # so that `from_dict` finds it
            _registry[cls.__name__] = cls
        if "inverse_temperature" in cls.__dict__ and "kernel_form" not in cls.__dict__:
            # A subclass that changes the rule no longer has the form of its parent.
            cls.kernel_form = Policy.kernel_form  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for entry in fields(self):
            if bounds := entry.metadata.get("bounds"):
                name = f"{type(self).__name__}.{entry.name}"
                value = as_parameter(name, getattr(self, entry.name))
                bounds.check(name, value)
                object.__setattr__(self, entry.name, value)

    @abstractmethod
    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        """Compute the inverse temperature of each row.

        Write it with operations that are differentiable: gradients through the temperature come
        from automatic differentiation of this method.

        Args:
            statistics: those of the untempered rows.
            tempered: gives the entropy and the variance of the rows at an inverse temperature;
                always given to a policy with `needs_logits`.

        Returns:
            An array, or a number, that broadcasts against the rows.
        """

    def kernel_form(self) -> KernelForm | None:
        """Return the closed form that kernels evaluate themselves, or None if there is none.

        A form only makes the policy faster. It must give the same beta as `inverse_temperature`.
        """
        return None

    def current(self) -> Policy:
        """Return the policy to evaluate now: itself, unless its parameters are learned."""
        return self

    @property
    def entropy_range(self) -> EntropyRange:
        """The entropies that the policy is meant for, and what it does outside of them."""
        return EntropyRange(0.0, float("inf"), "nothing lies outside")

    def of_rows(self, rows: Rows) -> Array:
        """Compute the inverse temperature of `rows`; 1 for a row without visible logits."""
        return self.of_statistics(rows.statistics, rows.tempered)

    def of_statistics(self, statistics: RowStatistics, tempered: Tempered | None = None) -> Array:
        """Compute beta with the shape of the rows; 1 for a row without visible logits.

        Parameters take the framework, dtype and device of the statistics first, so that
        `inverse_temperature` can use plain arithmetic.
        """
        xp = namespace(*statistics)
        arrays = {
            entry.name: xp.asarray(value, like=statistics.mass)
            for entry in fields(self)
            if "bounds" in entry.metadata
            and not isinstance(value := getattr(self, entry.name), int | float)
        }
        policy = self._changed(arrays) if arrays else self
        beta = policy.inverse_temperature(statistics, tempered)
        beta = xp.asarray(beta, like=statistics.mass)
        beta = xp.broadcast_to(beta, tuple(statistics.mass.shape))
        return xp.where(statistics.count == 0, 1.0, beta)

    def check_statistics(self, statistics: RowStatistics) -> None:
        """Warn if the policy is not meant for rows with these statistics. By default: never."""
        return

    # Heads.

    def per_head(self) -> dict[str, Array]:
        """Return the parameters that have one entry per head, along their first axis."""
        found = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if "bounds" not in entry.metadata or isinstance(value, int | float):
                continue
            if value.ndim > entry.metadata["axes"]:
                found[entry.name] = value
        return found

    def over_queries(self) -> Self:
        """Return this policy with an axis for queries after the axis of heads."""
        axes = {entry.name: entry.metadata.get("axes", 0) for entry in fields(self)}
        return self._changed(
            {k: x[(..., None, *[slice(None)] * axes[k])] for k, x in self.per_head().items()}
        )

    def check_heads(self, count: int) -> None:
        """Check that parameters per head fit a layer.

        Args:
            count: the number of query heads.

        Raises:
            ValueError: naming the parameter, what was expected and what came.
        """
        for name, value in self.per_head().items():
            if len(value) not in (1, count):
                raise ValueError(
                    f"{type(self).__name__}.{name}: expected a number or one entry for each of "
                    f"the {count} query heads, got {len(value)} entries"
                )

    def take_heads(self, heads: slice | Sequence[int]) -> Self:
        """Return the policy of some heads, in the given order.

        Args:
            heads: a slice, or the numbers of the heads.

        Example:
            >>> from sharpmax.policies import Constant
            >>> Constant([1.0, 2.0, 3.0]).take_heads([2, 0])
            Constant(beta=array([3., 1.]))
        """
        chosen = heads if isinstance(heads, slice) else list(heads)
        taken = {k: read_only(x[chosen]) for k, x in self.per_head().items() if len(x) > 1}
        return self._changed(taken)

    def of_head(self, head: int) -> Self:
        """Return the policy of one head, without an axis of heads."""
        values = {k: x[head if len(x) > 1 else 0] for k, x in self.per_head().items()}
        return replace(self, **values)

    def only_on(self, chosen: Array) -> Policy | None:
        """Return the policy with every other head switched off.

        Args:
            chosen: booleans, one per head.

        Returns:
            A policy that gives beta = 1 on the other heads, or None if this policy has no neutral
            value.
        """
        if self.neutral is None:
            return None
        value = getattr(self, self.neutral.name)
        xp = namespace(value)
        chosen = np.asarray(chosen)
        if xp.name == "torch":
            chosen = xp.asarray(chosen.astype(np.uint8), like=value) != 0
        switched = xp.where(chosen, value, self.neutral.value)
        return self._changed({self.neutral.name: read_only(switched)})

    def changes(self, count: int) -> np.ndarray[Any, Any]:
        """Tell which heads the policy changes: booleans, one for each of `count` heads."""
        return np.full(count, True) if self.neutral is None else self._beyond(count, np.abs)

    def flattens(self, count: int) -> np.ndarray[Any, Any]:
        """Tell for which heads beta is below 1: booleans, one for each of `count` heads."""
        return np.full(count, False)

    def _beyond(self, count: int, distance: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
        """Whether the neutral parameter is away from its value by more than the tolerance."""
        assert self.neutral is not None
        away = as_numbers(getattr(self, self.neutral.name)) - self.neutral.value
        return np.broadcast_to(distance(away) > self.neutral.tolerance, (count,)).copy()

    @staticmethod
    def stack(policies: Sequence[Policy | None]) -> Policy | None:
        """Join the policies of single heads into one policy with one entry per head.

        Args:
            policies: one per head, all of one kind; None for a head that is left alone.

        Returns:
            The policy of all heads, or None if all heads are left alone.

        Raises:
            TypeError: for policies of different kinds, of a kind that cannot be switched off where
                a head is left alone, or with different settings that are not numbers.

        Example:
            >>> from sharpmax.policies import Constant, Policy
            >>> Policy.stack([Constant(2.0), None])
            Constant(beta=array([2., 1.]))
        """
        present = [policy for policy in policies if policy is not None]
        if not present:
            return None
        first = present[0]
        switched_off = first.only_on(np.array(False))
        parts = [switched_off if policy is None else policy for policy in policies]
        kinds = {type(policy).__name__ for policy in parts}
        if len(kinds) > 1:
            raise TypeError(f"policies: expected one kind for all heads, got {sorted(kinds)}")
        values: dict[str, Any] = {}
        for entry in fields(first):
            own = [as_plain(getattr(policy, entry.name)) for policy in parts]
            if all(value == own[0] for value in own):
                values[entry.name] = getattr(first, entry.name)
            elif "bounds" in entry.metadata:
                values[entry.name] = np.array(own)
            else:
                raise TypeError(f"{entry.name}: expected the same for all heads, got {own}")
        return type(first)(**values)

    def _changed(self, values: dict[str, Array]) -> Self:
        """A copy with other values, which are not checked."""
        copy = object.__new__(type(self))
        for entry in fields(self):
            object.__setattr__(copy, entry.name, values.get(entry.name, getattr(self, entry.name)))
        return copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies and pickles of arrays are writable.
        self.__dict__.update({name: read_only(value) for name, value in state.items()})

    # Files.

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain Python data, ready for JSON."""
        parameters = {entry.name: as_plain(getattr(self, entry.name)) for entry in fields(self)}
        return {"format": FORMAT, "policy": type(self).__name__, "parameters": parameters}

    def to_json(self) -> str:
        """Return the policy as JSON; `Policy.from_json` reads it.

        Example:
            >>> from sharpmax.policies import Exponential, Policy
            >>> Policy.from_json(Exponential(reference=1.5).to_json())
            Exponential(reference=1.5, strength=1.0)
        """
        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Policy:
        """Read a policy from the JSON of `to_json`.

        Raises:
            RefusedError: a ValueError, for text that is not JSON, an unknown policy or parameter, a
                value out of range, or a format newer than this version of the library reads.
        """
        return Policy.from_dict(parse_json(text, "policy"))

    @staticmethod
    def from_dict(data: Any) -> Policy:
        """Read a policy from the data of `to_dict`.

        Raises:
            RefusedError: as `from_json` does.
        """
        if not isinstance(data, dict) or not {"format", "policy", "parameters"} <= data.keys():
            got = reprlib.repr(data)
            raise RefusedError(
                f"policy: expected an object with format, policy and parameters, got {got}"
            )
        format_, name, parameters = data["format"], data["policy"], data["parameters"]
        if not isinstance(format_, int) or format_ > FORMAT:
            raise RefusedError(
                f"policy: expected format {FORMAT} or older, got {reprlib.repr(format_)}: "
                "written by a newer sharpmax, which is needed to read it"
            )
        kind = _registry.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(sorted(_registry))
            raise RefusedError(f"policy: expected one of {known}, got {reprlib.repr(name)}")
        names = sorted(entry.name for entry in fields(kind))
        if not isinstance(parameters, dict) or not parameters.keys() <= set(names):
            unknown = set(parameters) - set(names) if isinstance(parameters, dict) else parameters
            got = reprlib.repr(sorted(unknown) if isinstance(unknown, set) else unknown)
            raise RefusedError(f"{kind.__name__}: expected parameters among {names}, got {got}")
        try:
            return kind(**parameters)
        except (OverflowError, TypeError, ValueError) as error:
            raise RefusedError(f"{kind.__name__}: {error}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.to_dict())))


@dataclass(frozen=True, eq=False)
class ClosedForm(Policy, register=False):
    """A policy whose rule is one of the forms that kernels evaluate."""

    @abstractmethod
    def _form(self) -> KernelForm:
        """The rule. Unlike `kernel_form`, it stays if a subclass changes `inverse_temperature`."""

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return self._form().evaluate(statistics)

    def kernel_form(self) -> KernelForm | None:
        return self._form()
