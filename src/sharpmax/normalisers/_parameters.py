"""Check the arguments of normalisers and draw their initial parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Generators = torch.Generator | Sequence[torch.Generator] | None
"""Source of random initial values: one for all heads, one per head, or PyTorch's own."""


def drawn(
    draw: Callable[..., Tensor], heads: int, shape: tuple[int, ...], generator: Generators
) -> Tensor:
    """Random numbers [heads, *shape], head after head; `draw` is torch.randn or torch.rand."""
    if not isinstance(generator, Sequence):
        return torch.stack([draw(shape, generator=generator) for _ in range(heads)])
    if len(generator) != heads:
        raise ValueError(
            f"generator: expected one, or one for each of {heads} heads, got {len(generator)}"
        )
    return torch.stack([draw(shape, generator=each) for each in generator])


def mapped(values: Tensor, weight: Tensor) -> Tensor:
    """A separate map per head: [..., heads, length, width] by [heads, width, out].

    As `values @ weight`, but without a copy of the weights for every entry of a batch.
    """
    return torch.einsum("...hlw,hwo->...hlo", values, weight.to(values.dtype))


def check_whole(name: str, value: Any, at_least: int = 1) -> int:
    """`value`, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name}: expected at least {at_least}, got {value}")
    return value


def check_number(name: str, value: Any, above: float = -math.inf) -> float:
    """`value`, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not above < value < math.inf:
        bound = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"{name}: expected a finite number{bound}, got {value!r}")
    return float(value)


def check_heads(name: str, tensor: Tensor, heads: int, width: int | None = None) -> None:
    """Refuse a tensor [..., heads, length, width] of another number of heads or another width."""
    right = tensor.ndim >= 3 and tensor.shape[-3] == heads
    if not right or width not in (None, tensor.shape[-1]):
        of_width = "" if width is None else f" of width {width}"
        raise ValueError(f"{name}: expected {heads} heads{of_width}, got {tuple(tensor.shape)}")
