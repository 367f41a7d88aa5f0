"""Merge the sums of the parts of a row, which programs made apart."""

from __future__ import annotations

import torch
from torch import Tensor


def at_top(maximum: Tensor, ties: Tensor, top: Tensor) -> Tensor:
    """Sum the ties of the parts that have the largest maximum."""
    return torch.where(maximum == top, ties, 0.0).sum(0)


def merge_tempered(
    maximum: Tensor, mass: Tensor, moment: Tensor, square: Tensor, top: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge sums at beta over the first axis, relative to the largest maximum, `top`."""
    gap, factor = rescaling(maximum, top, beta)
    return (
        (factor * mass).sum(0),
        (factor * (moment + gap * mass)).sum(0),
        (factor * (square + gap * (2.0 * moment + gap * mass))).sum(0),
    )


def rescaling(maximum: Tensor, top: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """maximum - top without infinities, and exp(beta (maximum - top)), 0 for an empty part."""
    same = torch.isinf(maximum) & (maximum == top)
    gap = (torch.where(same, 0.0, maximum) - torch.where(same, 0.0, top)).clamp(min=-1e18)
    hard = beta == torch.inf
    soft = torch.exp(torch.where(hard, 1.0, beta) * gap)
    factor = torch.where(hard, (gap == 0.0).to(gap.dtype), soft)
    return gap, torch.where(maximum == -torch.inf, 0.0, factor)
