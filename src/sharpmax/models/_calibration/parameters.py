"""What calibration may change in a head: its temperature, the gain of its output, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sharpmax.models._inspect import Layer
from sharpmax.models._rule import Rule
from sharpmax.policies import Constant, Exponential, Policy

FamilyName = Literal["constant", "entropy", "gain", "constant+gain", "entropy+gain"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)

_MOST_SHARPENING = math.log(8.0)
_MOST_GAIN = math.log(4.0)


@dataclass(frozen=True, eq=False)
class Family:
    """One or two numbers a head, all 0 where it is left alone.

    - "constant": log beta, the same for every row.
    - "entropy": a in log beta = a * max(0, H - reference), so that rows no more spread than at
      lengths where the model works are left alone.
    - "gain": the logarithm of a factor of the head's output, which changes no temperature.
    - "constant+gain", "entropy+gain": both.

    Attributes:
        name: of the family.
        layers: the attention layers that may change.
        flatten: whether beta may be below 1; not with "entropy".
        references: for "entropy", the reference of each head, by the index of the layer.
    """

    name: FamilyName
    layers: Sequence[Layer]
    flatten: bool = False
    references: Mapping[int, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.name not in FAMILIES:
            raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, got {self.name!r}")
        if self.flatten and self.name in ("entropy", "entropy+gain"):
            raise ValueError(f"flatten: expected False with family {self.name!r}, got True")
        for layer in self.layers:
            if layer.heads is None:
                raise ValueError(f"model: the number of heads of {layer.name} cannot be seen")

    @property
    def parts(self) -> tuple[str, ...]:
        """What the numbers of a head are: some of "constant", "entropy" and "gain"."""
        return tuple(self.name.split("+"))

    @property
    def counts(self) -> list[int]:
        """How many heads each of the layers has."""
        return [layer.heads or 0 for layer in self.layers]

    def neutral(self) -> Tensor:
        """The numbers that change nothing: [parts, heads of all layers]."""
        return torch.zeros(len(self.parts), sum(self.counts))

    def project(self, numbers: Tensor) -> Tensor:
        """The allowed numbers that are next to some."""
        limits = {
            "constant": (-_MOST_SHARPENING if self.flatten else 0.0, _MOST_SHARPENING),
            "entropy": (0.0, 1.0),
            "gain": (-_MOST_GAIN, _MOST_GAIN),
        }
        return torch.stack(
            [row.clamp(*limits[part]) for row, part in zip(numbers, self.parts, strict=True)]
        )

    def rules(self, numbers: Tensor) -> dict[int, Rule]:
        """What the layers get, differentiable in the numbers; layers of zeros are left alone."""
        found = {}
        for layer, own in zip(self.layers, numbers.split(self.counts, dim=1), strict=True):
            if not own.requires_grad and not own.any():
                found[layer.index] = Rule()
                continue
            policy: Policy | None = None
            gain = None
            for part, row in zip(self.parts, own, strict=True):
                if part == "constant":
                    policy = Constant(torch.exp(row))
                elif part == "entropy":
                    assert self.references is not None
                    policy = Exponential(self.references[layer.index], strength=row)
                else:
                    gain = torch.exp(row)
            found[layer.index] = Rule(policy, None, gain)
        return found
