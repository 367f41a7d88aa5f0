"""Which rule each attention layer gets, from what the caller asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sharpmax._files import RefusedError
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._inspect import KINDS, Layer
from sharpmax.models._rule import Rule
from sharpmax.policies import Policy

Which = int | str
"""A layer: its index, its name; or, for several, a kind."""


class CannotSharpenError(RefusedError):
    """A model, or a layer that was asked for, has no attention that can be sharpened."""


def plan(
    layers: list[Layer],
    policy: object,
    which: Iterable[Which] | Which | None,
    heads: Collection[int] | Mapping[Which, Collection[int]] | None,
) -> dict[int, Rule]:
    """The rule of each layer that a door leads to, by its index.

    Raises:
        CannotSharpenError: nothing would change, or a layer that was named cannot be reached.
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    rules = {layer.index: Rule() for layer in layers if layer.closed is None}
    if isinstance(policy, Calibration):
        if which is not None or heads is not None:
            raise ValueError("layers, heads: expected None with a calibration, which has its own")
        for entry in policy.layers:
            _open(layers[entry.index])
            rules[entry.index] = Rule.make(
                entry.policy, count=layers[entry.index].heads, gain=entry.gain
            )
        return rules
    for layer, chosen in _policies(layers, policy, which).items():
        rules[layer] = Rule.make(
            chosen, count=layers[layer].heads, heads=_heads_of(layers, layer, heads)
        )
    return rules


def _policies(
    layers: list[Layer], policy: object, which: Iterable[Which] | Which | None
) -> dict[int, Policy | None]:
    """The policy of each layer that was chosen."""
    chosen = None
    if which is not None:
        chosen = {index for each in _several(which) for index in find(layers, each, "layers")}
        for index in chosen:
            _open(layers[index])
    if isinstance(policy, Policy):
        reached = [layer.index for layer in layers if layer.closed is None]
        return {index: policy for index in reached if chosen is None or index in chosen}
    if not isinstance(policy, Mapping):
        raise TypeError(
            "policy: expected a policy, a mapping from layers to policies, or a Calibration, "
            f"got {policy!r}"
        )
    result: dict[int, Policy | None] = {}
    for each, value in policy.items():
        if not isinstance(value, Policy | None):
            raise TypeError(f"policy[{each!r}]: expected a policy or None, got {value!r}")
        for index in find(layers, each, "policy"):
            if value is not None and each not in KINDS:
                _open(layers[index])
            if layers[index].closed is None and (chosen is None or index in chosen):
                result[index] = value
    return result


def _heads_of(
    layers: list[Layer],
    index: int,
    heads: Collection[int] | Mapping[Which, Collection[int]] | None,
) -> Collection[int] | None:
    """The heads of a layer that get the policy; None stands for all."""
    if not isinstance(heads, Mapping):
        return heads
    found = [value for each, value in heads.items() if index in find(layers, each, "heads")]
    return found[-1] if found else ()


def find(layers: list[Layer], which: Any, argument: str) -> list[int]:
    """The indices of the layers that an index, a name or a kind stands for."""
    if isinstance(which, bool) or not isinstance(which, int | str):
        raise TypeError(f"{argument}: expected an index, a name or a kind of layer, got {which!r}")
    if isinstance(which, int):
        if not 0 <= which < len(layers):
            raise ValueError(
                f"{argument}: expected an index from 0 to {len(layers) - 1}, got {which}"
            )
        return [which]
    if which in KINDS:
        return [layer.index for layer in layers if layer.kind == which and layer.closed is None]
    found = [layer.index for layer in layers if layer.name == which]
    if not found:
        names = ", ".join(layer.name for layer in layers[:3])
        raise ValueError(
            f"{argument}: expected a kind ({', '.join(KINDS)}) or the name of an attention layer "
            f"({names}, …), got {which!r}"
        )
    return found


def _several(which: Any) -> list[Which]:
    return [which] if isinstance(which, int | str) else list(which)


def _open(layer: Layer) -> None:
    if layer.closed is not None:
        raise CannotSharpenError(f"{layer.name}: {layer.closed}")
