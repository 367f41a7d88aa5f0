"""Attend with Triton kernels, on GPUs of NVIDIA and AMD.

The kernels know no policies and no sinks. A sink is one more key without a value, so that its part
follows from the maximum and the mass of the other keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sharpmax._attention import temperature
from sharpmax._attention.impl import constant_when_compiled
from sharpmax._attention.impl.triton import counting, operators
from sharpmax._attention.impl.triton.launch import (
    WIDEST,
    interpreted,
    rows_per_head,
    score_bits,
)
from sharpmax._attention.impl.triton.merging import merge_tempered
from sharpmax._attention.impl.triton.table import FEW_ROWS
from sharpmax._attention.problem import Problem
from sharpmax._extras import available
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Policy

_BITS_OF_STATISTICS = 24
"""The fewest bits of kept logits that give statistics to single precision, or nearly so."""


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    if not available("triton"):
        return "Triton is not installed"
    device = problem.query.device
    if device.type != "cuda" and not (device.type == "cpu" and _interpreted()):
        return f"it serves tensors on a GPU of NVIDIA or AMD, these are on {device}"
    if device.type == "cuda" and _too_old(device):
        return "Triton serves GPUs of NVIDIA from compute capability 8.0 on, this one has less"
    if problem.query.dtype == torch.float64:
        return "query: the kernels compute in single precision, and these are float64"
    if problem.dropout:
        return "dropout_p: the kernels do not drop weights"
    widest = max(problem.key.shape[3], 0 if problem.value is None else problem.value.shape[3])
    if widest > WIDEST:
        return f"key, value: the kernels serve widths up to {WIDEST}, got {widest}"
    return None


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    return _measure(problem)[0]


def temper(problem: Problem, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and variance of all rows at the inverse temperature beta."""
    return _temper(problem, beta)


def attend(
    problem: Problem, beta: Tensor, log_mass: bool = True, maximum: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attend at the inverse temperature beta."""
    return _attend(problem, beta, log_mass, maximum)


def count(problem: Problem) -> Tensor | None:
    """Return how many keys each row sees, without making logits; None if that would cost more.

    It follows from positions and mask, unless a product of query and key may be -inf. Whether it
    may is told from the largest of both, so that they are read once. For a few rows `measure` with
    `held` costs less.
    """
    if not torch.compiler.is_compiling() and rows_per_head(problem.query, problem.key) <= FEW_ROWS:
        return None
    found: Tensor = counting.triton_count(
        problem.query, problem.key, problem.attn_mask, *_settings(problem)
    )
    if problem.sink is None or not problem.sink_counted:
        return found
    return found + (_sink(problem) != -torch.inf).to(found.dtype)


def held(problem: Problem) -> Held | None:
    """Return what keeps the logits of a few rows, if that moves fewer bytes than the keys again."""
    if torch.compiler.is_compiling():  # a graph would depend on the number of queries
        return None
    rows = rows_per_head(problem.query, problem.key)
    again = problem.key.shape[3] * problem.key.element_size()
    bits = score_bits(problem.key.dtype)
    moved = 2 * bits * rows // 8  # written and read
    return Held(bits) if rows <= FEW_ROWS and moved <= again else None


class Held:
    """The functions of this implementation for one problem, with logits that are made once."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._scores: Tensor | None = None

    def measure(self, problem: Problem) -> RowStatistics:
        """Measure all rows, and keep their logits."""
        statistics, self._scores = _measure(problem, self._bits)
        return statistics

    def temper(self, problem: Problem, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return entropy and variance at beta, from the logits that were kept."""
        if self._bits < _BITS_OF_STATISTICS:
            self._bits = _BITS_OF_STATISTICS
            with torch.no_grad():
                self.measure(problem)
        return _temper(problem, beta, self._scores, self._bits)

    def attend(
        self, problem: Problem, beta: Tensor, log_mass: bool = True, maximum: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend at beta, with the logits that were kept."""
        # Without the maximum, nothing tells that a logit is NaN.
        scores = None if maximum is None else self._scores
        return _attend(problem, beta, log_mass, maximum, scores, self._bits)


def _measure(problem: Problem, bits: int = 0) -> tuple[RowStatistics, Tensor]:
    """Measure all rows, and keep so many bits of their logits."""
    tied = torch.is_grad_enabled()
    maximum, mass, moment, _, count, _, kept = operators.triton_measure(
        problem.query, problem.key, problem.attn_mask, None, None, bits, tied, *_settings(problem)
    )
    statistics = RowStatistics(maximum, mass, moment, count)
    if problem.sink is None or not problem.sink_counted:
        return statistics, kept
    sink = _sink(problem)
    there = (sink != -torch.inf).expand_as(maximum)
    one = there.to(mass.dtype)
    beside = RowStatistics(
        sink.expand_as(maximum), one, torch.zeros_like(one), there.to(count.dtype)
    )
    return statistics.merge(beside), kept


def _temper(
    problem: Problem, beta: Tensor, scores: Tensor | None = None, bits: int = 0
) -> tuple[Tensor, Tensor]:
    beta = torch.as_tensor(beta, dtype=torch.float32, device=problem.query.device)
    beta = beta.expand(problem.rows).contiguous()
    maximum, mass, moment, square, _, _, _ = operators.triton_measure(
        problem.query,
        problem.key,
        problem.attn_mask,
        beta,
        scores,
        bits,
        False,
        *_settings(problem),
    )
    if problem.sink is not None and problem.sink_counted:
        sink = _sink(problem).expand_as(maximum)
        top = torch.maximum(maximum, sink).detach()
        one, zero = torch.ones_like(mass), torch.zeros_like(mass)
        mass, moment, square = merge_tempered(
            torch.stack([maximum, sink]),
            torch.stack([mass, one]),
            torch.stack([moment, zero]),
            torch.stack([square, zero]),
            top,
            beta,
        )
    some = torch.where(mass == 0.0, 1.0, mass)
    mean = moment / some
    variance = (square / some - mean * mean).clamp(min=0.0)
    return torch.log(some) - beta * mean, variance


def _attend(
    problem: Problem,
    beta: Tensor,
    log_mass: bool,
    maximum: Tensor | None,
    scores: Tensor | None = None,
    bits: int = 0,
) -> tuple[Tensor, Tensor | None]:
    assert problem.value is not None
    output, top, relative = operators.triton_attend(
        problem.query,
        problem.key,
        problem.value,
        problem.attn_mask,
        beta,
        maximum,
        scores,
        0 if scores is None else bits,
        *_settings(problem),
    )
    if problem.sink is None:
        mass = temperature.log_mass(relative, top, beta, maximum) if log_mass else None
        return output, mass
    mass = temperature.log_mass(relative, top, beta, None)
    sink = _sink(problem)
    if problem.sink_counted:
        ahead = relative + _tempered_gap(top, sink, beta)
        mass_of_sink = torch.where(sink == 0.0, 0.0, beta * sink)
    else:
        ahead = mass - torch.where(torch.isinf(sink), 0.0, sink)
        ahead = torch.where(torch.isinf(sink), -sink, ahead)
        mass_of_sink = sink
    output = (output * torch.sigmoid(ahead)[..., None]).to(output.dtype)
    if not log_mass:
        return output, None
    joined = torch.logaddexp(mass, mass_of_sink)
    return output, joined if maximum is None else joined - beta * maximum


def _tempered_gap(top: Tensor, sink: Tensor, beta: Tensor) -> Tensor:
    """beta (top - sink); at an infinite beta, and beside an infinite logit, the limit."""
    same = (top == sink) & torch.isinf(top)
    distance = torch.where(same, 0.0, torch.where(same, 0.0, top) - torch.where(same, 0.0, sink))
    limit = torch.where(distance == 0.0, 0.0, torch.copysign(torch.full_like(beta, 1e38), distance))
    final = (beta == torch.inf) | torch.isinf(distance)
    # What is not chosen must be finite, or its gradient is NaN.
    return torch.where(final, limit, torch.where(final, 0.0, beta) * distance.masked_fill(final, 0))


def _sink(problem: Problem) -> Tensor:
    assert problem.sink is not None
    return problem.sink[:, None]


def _settings(problem: Problem) -> tuple[Any, ...]:
    return problem.scale, problem.softcap, problem.left, problem.right, problem.offset


@constant_when_compiled
def _too_old(device: torch.device) -> bool:
    return not torch.version.hip and torch.cuda.get_device_capability(device) < (8, 0)


# A graph would follow the cache behind it.
@constant_when_compiled
def _interpreted() -> bool:
    return interpreted()
