"""Put the policy between measuring and attending, when keys live on many ranks.

`keys` is a way to reach all keys (`_tree`, `_ring`). It gives what `_blocks` gives of one block,
for all keys of all ranks. A sink is one more key without a value, which every rank has; it joins
here.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sharpmax._attention.temperature import log_mass
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Policy


class Keys(Protocol):
    """A way to reach the keys of all ranks."""

    def measure(self) -> RowStatistics:
        """Return the statistics of the rows."""

    def temper(self, beta: Tensor, maximum: Tensor) -> Tensor:
        """Return the sums of w, w beta d and w d d, where d = e - maximum, w = exp(beta d)."""

    def attend(self, beta: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of w v and of w."""

    def solved(self) -> None:
        """Say that this rank needs `temper` no more."""


def measure(keys: Keys, sink: Tensor | None, counted: bool) -> RowStatistics:
    """Measure the rows, with the sink if it counts."""
    statistics = keys.measure()
    if sink is None or not counted:
        return statistics
    there = (sink[:, None] != -torch.inf).expand_as(statistics.count)
    one = there.to(statistics.mass.dtype)
    beside = RowStatistics(
        sink[:, None].expand_as(one), one, torch.zeros_like(one), there.to(statistics.count.dtype)
    )
    return statistics.merge(beside)


def attend(
    keys: Keys, policy: Policy, sink: Tensor | None, counted: bool, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Attend at the temperature of the policy: the output, in single precision or more, and these.

    `counted` says whether the sink is a key like others.
    """
    beside = sink if counted else None
    with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_temperature):
        statistics = measure(keys, sink, counted)
        maximum = statistics.maximum.detach()

        def tempered(beta: Tensor) -> tuple[Tensor, Tensor]:
            beta = torch.as_tensor(beta, dtype=maximum.dtype, device=maximum.device)
            return _tempered(keys, beta.expand_as(maximum), maximum, beside)

        beta = policy.over_queries().of_statistics(statistics, tempered)
        if policy.needs_logits:
            keys.solved()
    output, mass = keys.attend(beta, maximum)
    if beside is not None:
        mass = mass + torch.exp(_tempered_sink(beside, beta, maximum))
    some = torch.where(mass == 0.0, 1.0, mass)
    output = output / some[..., None]
    if sink is not None and not counted:
        output = output * _kept(sink[:, None], beta, maximum, some)[..., None]
    return output, RowStatistics(*(entry.detach() for entry in statistics))


def _tempered(
    keys: Keys, beta: Tensor, maximum: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the entropy of the rows at beta, and the variance of their logits."""
    mass, shifted, square = keys.temper(beta, maximum).unbind()
    if sink is not None:
        logarithm = _tempered_sink(sink, beta, maximum).double()
        weight = torch.exp(logarithm)
        shift = torch.where(weight == 0.0, 0.0, logarithm)
        mass, shifted = mass + weight, shifted + weight * shift
        square = square + (weight * (shift / beta).square()).detach()
    some = torch.where(mass == 0.0, 1.0, mass)
    mean = shifted / some
    variance = (square / some - (mean / beta).square()).clamp(min=0.0).detach()
    return (torch.log(some) - mean).to(maximum.dtype), variance.to(maximum.dtype)


def _tempered_sink(sink: Tensor, beta: Tensor, maximum: Tensor) -> Tensor:
    """beta (sink - maximum)."""
    top = sink[:, None].expand_as(maximum)
    return log_mass(torch.zeros_like(maximum), top, beta, maximum)


def _kept(sink: Tensor, beta: Tensor, maximum: Tensor, mass: Tensor) -> Tensor:
    """Return the share that a sink which stands apart leaves to the keys."""
    infinite = torch.isinf(sink)
    seen = maximum != -torch.inf
    logarithm = torch.log(mass) + beta * torch.where(seen, maximum, 0.0)
    kept = torch.sigmoid(logarithm - torch.where(infinite, 0.0, sink))
    return torch.where(infinite, (sink < 0).to(kept.dtype), kept)
