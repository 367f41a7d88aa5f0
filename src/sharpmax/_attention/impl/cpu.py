"""Panels of rows in the core's cache: the C++ kernels, through PyTorch operators.

The kernels are compiled when they are first needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharpmax._attention.encode import form_of, parameters_of
from sharpmax._attention.impl import _build, _operators
from sharpmax._attention.problem import Problem
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form, Policy


def unsupported(problem: Problem, policy: Policy | None, detach_temperature: bool) -> str | None:
    """What the kernels have no code for."""
    if problem.query.device.type != "cpu":
        return f"it serves tensors on the CPU, these are on {problem.query.device}"
    if problem.dropout:
        return "dropout_p: the kernels drop nothing"
    if policy is not None and form_of(policy) == Form.GIVEN:
        name = type(policy).__name__
        if policy.needs_logits:
            return f"policy: {name} is not known to the kernels and has to weigh the rows again"
        if torch.is_grad_enabled() and not detach_temperature:
            return (
                f"policy: {name} is not known to the kernels, so that they cannot differentiate "
                "it; detach_temperature=True holds its temperature constant"
            )
    reason: str | None = _unavailable()
    return reason


def attend(
    problem: Problem, policy: Policy, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Output and statistics of all rows."""
    assert problem.value is not None
    form, beta = form_of(policy), None
    if form == Form.GIVEN:
        with torch.no_grad():
            measured = measure(problem)
            beta = policy.over_queries().inverse_temperature(measured)
            beta = torch.as_tensor(beta, dtype=measured.mass.dtype).broadcast_to(problem.rows)
            beta = torch.where(measured.count == 0, 1.0, beta)
    attention = _operators.attention_now if _is_plain(problem) else _operators.attention
    output, maximum, mass, moment, count, _, _ = attention(
        problem.query,
        problem.key,
        problem.value,
        problem.mask,
        problem.sink,
        beta,
        parameters_of(policy, problem.query.shape[1]),
        int(form),
        detach_temperature,
        *_settings(problem),
    )
    return output, RowStatistics(maximum, mass, moment, count)


def measure(problem: Problem) -> RowStatistics:
    """Statistics of all rows."""
    plain = _is_plain(problem)
    statistics = _operators.statistics_now if plain else _operators.attention_statistics
    return RowStatistics(
        *statistics(problem.query, problem.key, problem.mask, problem.sink, *_settings(problem))
    )


def _is_plain(problem: Problem) -> bool:
    """Whether nobody watches: no gradient, compilation, transform or mode, only numbers.

    Then the kernels are called directly: the way through the dispatcher takes longer than a short
    decoding step.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or type(problem.query) is not Tensor
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._len_torch_dispatch_stack()
    )


def _settings(problem: Problem) -> tuple[float, float, int, int, int, bool]:
    return (
        problem.scale,
        problem.softcap,
        problem.left,
        problem.right,
        problem.offset,
        problem.sink_counted,
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _unavailable() -> str | None:
    return _build.failure()
