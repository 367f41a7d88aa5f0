"""Muon for many small matrices: those of one shape are updated together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon"]

# As in `torch.optim.Muon`.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_SMALLEST = 1e-7


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, in half its time.

    Args:
        parameters: Matrices.
        lr: Learning rate.
        weight_decay: Decoupled decay.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices."""
        for group in self.param_groups:
            shapes = defaultdict(list)
            for parameter in group["params"]:
                rows, columns = sorted(parameter.shape)
                shapes[rows, columns].append(parameter)
            for (_, larger), parameters in shapes.items():
                directions = _orthogonal([_wide(self._nesterov(p)) for p in parameters])
                rate = group["lr"] * 0.2 * larger**0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                for parameter, direction in zip(parameters, directions, strict=True):
                    _wide(parameter).add_(direction, alpha=-rate)

    def _nesterov(self, parameter: nn.Parameter) -> Tensor:
        """Move the momentum of a parameter, and return the gradient ahead of it."""
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - _MOMENTUM)
        return gradient.lerp(momentum, _MOMENTUM)


def _wide(matrix: Tensor) -> Tensor:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _orthogonal(matrices: list[Tensor]) -> Tensor:
    """Move singular values towards 1 by Newton-Schulz iterations, [matrices, rows, columns]."""
    linear, cubic, quintic = _COEFFICIENTS
    found = torch.stack(matrices).bfloat16()
    found /= found.norm(dim=(1, 2), keepdim=True).clamp(min=_SMALLEST)
    for _ in range(_ITERATIONS):
        gram = found @ found.mT
        update = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        found = torch.baddbmm(found, update, found, beta=linear)
    return found.float()
