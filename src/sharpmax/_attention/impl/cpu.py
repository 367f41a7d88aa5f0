"""Attend with the C++ kernels, which keep panels of rows in the core's cache.

They are PyTorch operators. A wheel brings the kernels; otherwise they are compiled on first use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharpmax import kernels
from sharpmax._attention import temperature
from sharpmax._attention.impl import _operators, constant_when_compiled
from sharpmax._attention.problem import Problem
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form, Policy


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    if problem.query.device.type != "cpu":
        return f"it serves tensors on the CPU, these are on {problem.query.device}"
    if problem.dropout:
        return "dropout_p: the kernels do not drop weights"
    reason: str | None = _unavailable()
    return reason


@constant_when_compiled
def prepare() -> str | None:
    """Compile the kernels unless that has been done."""
    return kernels.failure()


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    plain = _is_plain(problem)
    statistics = _operators.statistics_now if plain else _operators.attention_statistics
    return RowStatistics(*statistics(*_logits(problem), *_settings(problem)))


def temper(problem: Problem, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and variance of all rows at the inverse temperature beta."""
    beta = torch.as_tensor(beta, dtype=problem.statistics_dtype).broadcast_to(problem.rows)
    entropy, variance, *_ = _operators.attention_tempered(
        *_logits(problem), beta, *_settings(problem)
    )
    return entropy, variance


def attend(
    problem: Problem, beta: Tensor, log_mass: bool = True, maximum: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attend at the inverse temperature beta."""
    results = _attention(problem, beta, Form.GIVEN, _operators.NO_COLUMNS, False)
    output, top, relative = results[0], results[1], results[6]
    if not log_mass:
        return output, None
    return output, temperature.log_mass(relative, top, beta, maximum)


def fused(
    problem: Problem, form: Form, table: Tensor, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Measure and attend in one pass, at the temperature of a closed form."""
    output, *statistics = _attention(problem, None, form, table, detach_temperature)[:5]
    return output, RowStatistics(*statistics)


def _attention(
    problem: Problem, beta: Tensor | None, form: Form, table: Tensor, detach_temperature: bool
) -> tuple[Tensor, ...]:
    assert problem.value is not None
    operator = _operators.attention_now if _is_plain(problem) else _operators.attention
    results: tuple[Tensor, ...] = operator(
        problem.query,
        problem.key,
        problem.value,
        problem.attn_mask,
        problem.sink,
        beta,
        table,
        int(form),
        detach_temperature,
        *_settings(problem),
    )
    return results


def _logits(problem: Problem) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What determines the logits; a sink that stands apart is none of them."""
    sink = problem.sink if problem.sink_counted else None
    return problem.query, problem.key, problem.attn_mask, sink


def _is_plain(problem: Problem) -> bool:
    """Whether nothing observes the call: no gradient, compilation, transform or mode.

    Then the kernels are called directly: the dispatcher takes longer than a short decoding step.
    """
    if (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._len_torch_dispatch_stack()
    ):
        return False
    tensors = (problem.query, problem.key, problem.value, problem.attn_mask, problem.sink)
    # A subclass wants to see the call, and a negated view keeps its sign apart from its numbers.
    return all(t is None or (type(t) is Tensor and not t.is_neg()) for t in tensors)


def _settings(problem: Problem) -> tuple[float, float, int, int, int, bool]:
    return (
        problem.scale,
        problem.softcap,
        problem.left,
        problem.right,
        problem.offset,
        problem.sink_counted,
    )


@constant_when_compiled
def _unavailable() -> str | None:
    return kernels.unavailable()
