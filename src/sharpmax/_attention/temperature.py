"""Compose attention from its two primitives, and differentiate through the temperature.

An implementation provides `measure` and `attend` (see `sharpmax._attention.impl`). This module
adds the policy between them, once for all implementations:

    statistics  = measure(problem)
    beta        = policy(statistics)
    output      = attend(problem, beta)

Gradients through the temperature are those of this composition. Automatic differentiation of the
policy gives the gradients of beta by the statistics of the row and by the policy's parameters. The
functions below turn gradients by the statistics into gradients by the logits e of the row, in the
form that kernels evaluate.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax._arrays import namespace
from sharpmax._attention.problem import Problem
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form, Policy


def attend(
    implementation: Any,
    problem: Problem,
    policy: Policy,
    detach_temperature: bool,
    measured: bool = True,
) -> tuple[Tensor, RowStatistics | None]:
    """Attend at the temperature of a policy: the output, and the statistics of the rows.

    Unless they are asked for by `measured`, statistics that the policy does not read are not
    computed, and None is returned in their place.

    Raises:
        ValueError: for parameters that do not fit the number of heads.
    """
    table = table_of(policy, problem.query.shape[1]) if hasattr(implementation, "fused") else None
    if table is not None:
        read = measured or type(policy).check_statistics is not Policy.check_statistics
        output, statistics = implementation.fused(problem, *table, detach_temperature, read)
        if statistics is not None:
            policy.check_statistics(statistics)
        return output, statistics
    policy.check_heads(problem.query.shape[1])
    if not measured:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_temperature):
            beta = _unmeasured(implementation, policy, problem)
        if beta is not None:
            return implementation.attend(problem, beta, log_mass=False)[0], None
    if hasattr(implementation, "held"):
        implementation = implementation.held(problem) or implementation
    with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_temperature):
        statistics = implementation.measure(problem)
        tempered = functools.partial(implementation.temper, problem)
        beta = policy.over_queries().of_statistics(statistics, tempered)
    maximum = statistics.maximum.detach()
    output, _ = implementation.attend(problem, beta, log_mass=False, maximum=maximum)
    return output, RowStatistics(*(entry.detach() for entry in statistics))


def _unmeasured(implementation: Any, policy: Policy, problem: Problem) -> Tensor | None:
    """Return beta of all rows, if the policy reads nothing of them but how many keys they see."""
    found = policy.kernel_form()
    if found is None or found.form not in (Form.CONSTANT, Form.HARD, Form.LENGTH):
        return None
    ones = torch.ones(problem.rows, dtype=problem.statistics_dtype, device=problem.query.device)
    count: Tensor | None = ones
    learned = any(isinstance(column, Tensor) and column.requires_grad for column in found.columns)
    if found.form == Form.LENGTH or learned:  # rows that see nothing must not move a parameter
        count = implementation.count(problem) if hasattr(implementation, "count") else None
        if count is None:
            return None
    beta: Tensor = policy.over_queries().of_statistics(RowStatistics(ones, ones, ones, count))
    return beta


def log_mass(relative: Tensor, top: Tensor, beta: Tensor, maximum: Tensor | None) -> Tensor:
    """Return log sum exp(beta (e - maximum)), given the same relative to `top` instead.

    `top` is the largest logit, -inf for a row without keys. `maximum` is at least as large; None is
    0. The difference of the two is taken first, since beta times either may be huge.
    """
    base = torch.zeros_like(top) if maximum is None else maximum
    nothing = (top == -torch.inf) | ((base == torch.inf) & (top != torch.inf))
    same = nothing | (torch.isinf(top) & (top == base))
    # What is not chosen must be finite, or its gradient is NaN.
    gap = torch.where(same, 0.0, top) - torch.where(same, 0.0, base)
    gap = gap.clamp(min=-math.sqrt(torch.finfo(gap.dtype).max))
    hard = torch.isinf(beta)
    limit = torch.where(gap == 0.0, 0.0, torch.copysign(torch.full_like(gap, torch.inf), gap))
    tempered = torch.where(hard, limit.detach(), torch.where(hard, 0.0, beta) * gap)
    return torch.where(nothing, -torch.inf, tempered + torch.where(nothing, 0.0, relative))


class Terms(NamedTuple):
    """What the statistics of a row add to the gradient of its logits.

    exp(d) (a0 + c0 d) + p (a1 + c1 d), where d = e - maximum and p = softmax(beta e). All have one
    entry per row; None means zero.
    """

    a0: Tensor | None = None
    c0: Tensor | None = None
    a1: Tensor | None = None
    c1: Tensor | None = None


def through_statistics(
    statistics: RowStatistics, by_maximum: Tensor, by_mass: Tensor, by_moment: Tensor
) -> tuple[Terms, Tensor]:
    """Turn gradients by maximum, mass and moment into gradients by the logits.

    d mass / d e_j = exp(d_j) and d moment / d e_j = (1 + d_j) exp(d_j), plus what both get through
    the maximum. For the entropy this is d H / d e_j = -p_j (e_j - E[e]), and the share of the
    maximum vanishes.

    Returns:
        Terms, and the gradient that goes to the largest logit, evenly to those that tie.
    """
    mass, moment = statistics.mass, statistics.moment
    occupied = statistics.count > 0
    through_mass, through_moment = by_mass * mass, by_moment * (moment + mass)
    to_maximum = by_maximum - through_mass - through_moment
    # Where only rounding is left, there is no dependence on the maximum.
    size = by_maximum.abs() + through_mass.abs() + through_moment.abs()
    rounding = 64 * torch.finfo(mass.dtype).eps * size
    to_maximum = torch.where(occupied & (to_maximum.abs() > rounding), to_maximum, 0.0)
    return Terms(
        a0=torch.where(occupied, by_mass + by_moment, 0.0),
        c0=torch.where(occupied, by_moment, 0.0),
    ), to_maximum


def through_policy(
    form: Form,
    parameters: Tensor,
    statistics: RowStatistics,
    beta: Tensor,
    by_beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    logmass: Tensor | None = None,
) -> tuple[Terms, Tensor]:
    """Turn the gradient by beta into gradients by the logits and by the parameters of a form.

    Args:
        form: the closed form of the policy.
        parameters: its columns, [heads or 1, columns].
        statistics: those of the untempered rows, [batch, heads, queries].
        beta: the inverse temperatures.
        by_beta: the gradient by them.
        mean: that of the logits under the tempered weights.
        variance: likewise.
        logmass: if a sink stands apart, the log of the tempered mass of keys and sink, relative to
            beta * maximum.

    Returns:
        Terms, and the gradient by the parameters.
    """
    by_beta = torch.where(statistics.count == 0, 0.0, by_beta)
    if form == Form.TARGET:
        # beta solves H(beta e) = target. Its derivative by e_j is -beta p_j (e_j - mean) / Var, by
        # the target -1 / (beta Var). Rows that are left alone have none, and at the limit beta
        # follows the limit alone.
        target, limit = (column[:, None].to(beta.dtype) for column in parameters.unbind(-1))
        solved = (beta > 1.0) & (beta < limit) & (variance > 0.0)
        inverse = torch.where(solved, 1.0 / torch.where(solved, variance, 1.0), 0.0)
        slope = -by_beta * beta * inverse
        shift = torch.where(solved, mean - statistics.maximum, 0.0)
        if logmass is not None:
            # p of the kernel is a share of keys and sink, that of the equation a share of keys.
            slope = slope * torch.where(solved, torch.exp(logmass - target - beta * shift), 0.0)
        at_limit = (beta >= limit) & (statistics.entropy() > target)
        by_target = _per_head(-by_beta * inverse / beta, parameters)
        by_limit = _per_head(torch.where(at_limit, by_beta, 0.0), parameters)
        terms = Terms(a1=-slope * shift, c1=slope)
        return terms, torch.stack([by_target, by_limit], dim=-1)
    with torch.enable_grad():
        columns = [p.detach().requires_grad_() for p in parameters.unbind(-1)]
        leaves = [x.detach().requires_grad_() for x in (statistics.mass, statistics.moment)]
        mass, moment = leaves
        rows = RowStatistics(statistics.maximum.detach(), mass, moment, statistics.count)
        value = form.evaluate([p.to(beta.dtype)[:, None] for p in columns], rows)
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            value.broadcast_to(beta.shape), [*leaves, *columns], by_beta, allow_unused=True
        )
    by_mass, by_moment, *by_columns = gradients
    by_parameters = torch.stack(
        [
            torch.zeros_like(column) if gradient is None else gradient
            for column, gradient in zip(columns, by_columns, strict=True)
        ],
        dim=-1,
    )
    if by_mass is None or by_moment is None:
        return Terms(), by_parameters
    terms, _ = through_statistics(statistics, torch.zeros_like(by_mass), by_mass, by_moment)
    return terms, by_parameters


def _per_head(rows: Tensor, parameters: Tensor) -> Tensor:
    """Sum [batch, heads, queries] to the heads of the parameters, or to one."""
    summed = rows.sum(dim=(0, 2)).to(parameters.dtype)
    return summed if len(parameters) != 1 else summed.sum()[None]


_tables: dict[int, tuple[weakref.ref[Policy], tuple[Form, Tensor], int]] = {}
"""By the identity of a policy: the form, the table of parameters that kernels read, its rows."""


def table_of(policy: Policy, heads: int) -> tuple[Form, Tensor] | None:
    """Return the closed form of a policy and its columns, float64 [heads or 1, columns].

    None for a policy without a closed form. Differentiable in parameters that are tensors. A policy
    without tensors is encoded once, since that takes a noticeable part of a decoding step.

    Raises:
        ValueError: for a parameter that is neither a number nor an array with one entry per head.
    """
    if torch.compiler.is_compiling():
        return _encode(policy, heads)
    key = id(policy)
    known = _tables.get(key)
    if known is not None and known[0]() is policy and known[2] in (1, heads):
        return known[1]
    encoded = _encode(policy, heads)
    if encoded and not any(isinstance(value, Tensor) for value in vars(policy).values()):
        reference = weakref.ref(policy, lambda _: _tables.pop(key, None))
        _tables[key] = (reference, encoded, len(encoded[1]))
    return encoded


def _encode(policy: Policy, heads: int) -> tuple[Form, Tensor] | None:
    found = policy.kernel_form()
    if found is None:
        return None
    form, columns = found
    if not columns:
        return form, torch.zeros(1, 0, dtype=torch.float64)
    if all(isinstance(column, int | float) for column in columns):
        return form, torch.tensor([columns], dtype=torch.float64)
    if not torch.compiler.is_compiling():  # a graph cannot read the declarations of parameters
        policy.check_heads(heads)
    like = torch.zeros(0, dtype=torch.float64)
    tensors = [namespace(like).asarray(column, like) for column in columns]
    if any(column.ndim > 1 for column in tensors):
        raise ValueError(f"policy: expected parameters with one axis, over heads, got {policy!r}")
    return form, torch.stack(
        torch.broadcast_tensors(*(torch.atleast_1d(column) for column in tensors)), dim=-1
    )
