"""The numbers that calibration fits for each head: a temperature, a gain, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sharpmax.models._rule import Rule
from sharpmax.models._way import Layer
from sharpmax.policies import Constant, Exponential, Policy

FamilyName = Literal["constant", "entropy", "gain", "constant+gain", "entropy+gain"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)

_LARGEST_LOG_BETA = math.log(8.0)
_LARGEST_LOG_GAIN = math.log(4.0)


@dataclass(frozen=True, eq=False)
class HeadParameters:
    """One or two numbers per head, 0 for an unchanged head; `calibrate` explains the families.

    One temperature per head is HeadScale (arXiv 2404.12224), one scalar per head output is SEAL
    (arXiv 2501.15225), which merges it into the weights.
    """

    family: FamilyName
    layers: Sequence[Layer]
    flatten: bool = False
    references: Mapping[int, Tensor] | None = None  # entropies of heads, by the layer's index

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, got {self.family!r}")
        if self.flatten and "entropy" in self.kinds:
            raise ValueError(
                f"flatten: expected False with family {self.family!r}, got True; choose "
                "'constant' or 'constant+gain'"
            )
        for layer in self.layers:
            if layer.heads is None:
                raise ValueError(
                    f"model: expected {layer.name} to name its number of heads, got none of the "
                    "attributes that sharpmax knows"
                )

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.family.split("+"))

    def neutral(self) -> Tensor:
        """Return the numbers that change nothing: [kinds, heads of all layers]."""
        return torch.zeros(len(self.kinds), sum(self._counts))

    def project(self, numbers: Tensor) -> Tensor:
        """Return the nearest allowed numbers."""
        limits = {
            "constant": (-_LARGEST_LOG_BETA if self.flatten else 0.0, _LARGEST_LOG_BETA),
            "entropy": (0.0, 1.0),
            "gain": (-_LARGEST_LOG_GAIN, _LARGEST_LOG_GAIN),
        }
        rows = zip(numbers, self.kinds, strict=True)
        return torch.stack([row.clamp(*limits[kind]) for row, kind in rows])

    def rules(self, numbers: Tensor) -> dict[int, Rule]:
        """Return the rule of each layer, differentiable in the numbers."""
        found = {}
        for layer, own in zip(self.layers, numbers.split(self._counts, dim=1), strict=True):
            policy: Policy | None = None
            gain = None
            changes = own.requires_grad or bool(own.any())
            for kind, row in zip(self.kinds, own, strict=True) if changes else ():
                if kind == "constant":
                    policy = Constant(torch.exp(row))
                elif kind == "entropy":
                    assert self.references is not None
                    policy = Exponential(self.references[layer.index], strength=row)
                else:
                    gain = torch.exp(row)
            found[layer.index] = Rule(policy, None, gain)
        return found

    @property
    def _counts(self) -> list[int]:
        return [layer.heads or 0 for layer in self.layers]
