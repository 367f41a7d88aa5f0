"""Compose attention from PyTorch's own kernels, on any device.

`attend` is `scaled_dot_product_attention` with each query multiplied by the inverse temperature of
its row. It is exact if beta may be moved into the query: not behind a softcap, a bias or a sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpmax._attention import temperature
from sharpmax._attention.impl import reference
from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form, Policy

LOGITS_AT_ONCE = 1 << 22
"""Rows are measured in blocks of queries with fewer logits than this."""


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what stock kernels cannot do exactly."""
    if policy is None:
        return None
    if problem.softcap:
        return "softcap: beta acts behind the cap, where a stock kernel cannot apply it"
    if problem.sink is not None:
        return "sink: the stock kernel has none"
    if problem.dropout:
        return "dropout_p: the stock kernel does not show which weights it dropped"
    form = policy.kernel_form()
    if form is not None and form.form == Form.HARD:
        return "policy: an infinite beta cannot be multiplied into the query"
    if problem.attn_mask is not None and problem.attn_mask.is_floating_point():
        return _unsupported_mask(problem.attn_mask)
    return None


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows, block by block."""
    return RowStatistics(*_blocks(problem, reference.measure))


def temper(problem: Problem, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and variance of all rows at the inverse temperature beta, block by block."""
    entropy, variance = _blocks(problem, reference.temper, beta)
    return entropy, variance


def attend(
    problem: Problem, beta: Tensor, log_mass: bool = True, maximum: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attend at the inverse temperature beta."""
    assert problem.value is not None
    # In half precision the product with beta would be rounded; so this pass is in single.
    dtype = problem.statistics_dtype
    only_causal = problem.right == 0 and problem.left < 0 and problem.offset == 0
    mask = _boolean_mask(problem, with_window=not only_causal)
    output = F.scaled_dot_product_attention(
        problem.query.to(dtype) * beta[..., None],
        problem.key.to(dtype),
        problem.value.to(dtype),
        attn_mask=mask,
        is_causal=only_causal and problem.attn_mask is None,
        scale=problem.scale,
        enable_gqa=problem.group > 1,
    )
    # Before rows without keys are set to 0: gradients would pass through what is hidden there.
    odd = _is_odd(output)
    if torch.is_grad_enabled() and (problem.query.requires_grad or problem.key.requires_grad):
        odd = odd or _is_odd(problem.key)
    if problem.key.shape[2] == 0:
        output = torch.zeros_like(output)
    elif mask is not None:
        output = torch.where(mask.any(-1, keepdim=True), output, 0.0)
    mass = None
    if log_mass:
        base = torch.zeros_like(beta) if maximum is None else maximum
        mass = _blocks(problem, _log_mass, beta, base)[0]
    if odd:
        # The stock kernel makes NaN of infinite logits and of odd numbers that are hidden.
        return _blocks(problem, _output, beta)[0], mass
    return output.to(problem.query.dtype), mass


def _is_odd(output: Tensor) -> bool:
    """Whether a number is not finite; False where a graph or a transform cannot tell."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return False
    has_numbers = type(output).__torch_dispatch__ is Tensor.__torch_dispatch__
    return has_numbers and not bool(torch.isfinite(output).all())


def _output(problem: Problem, beta: Tensor) -> tuple[Tensor]:
    return (reference.attend(problem, beta, log_mass=False)[0],)


def _log_mass(problem: Problem, beta: Tensor, maximum: Tensor) -> tuple[Tensor]:
    rows = reference.rows_of(problem)
    top = rows.statistics.maximum
    return (temperature.log_mass(rows.log_mass(beta), top, beta, maximum),)


def _blocks(problem: Problem, function: Callable[..., Any], *rowwise: Tensor) -> list[Tensor]:
    """Apply a function of the reference to blocks of queries, and join the results."""
    batch, heads, queries = problem.rows
    per_query = max(batch * heads * problem.key.shape[2], 1)
    step = max(LOGITS_AT_ONCE // per_query, 1)
    blocks = []
    for start in range(0, max(queries, 1), step):
        block = problem.rows_between(start, start + step)
        arguments = [block, *(tensor[..., start : start + step] for tensor in rowwise)]
        if torch.is_grad_enabled():
            # Computed again in the backward pass rather than kept: memory stays linear.
            blocks.append(
                torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)
            )
        else:
            blocks.append(function(*arguments))
    return [torch.cat(entries, dim=2) for entries in zip(*blocks, strict=True)]


def _boolean_mask(problem: Problem, with_window: bool) -> Tensor | None:
    visible = problem.in_window() if with_window or problem.attn_mask is not None else None
    if problem.attn_mask is None:
        return visible
    mask = problem.attn_mask
    if mask.is_floating_point():
        mask = mask > masked_below(mask.dtype)
    return mask if visible is None else mask & visible


def _unsupported_mask(mask: Tensor) -> str | None:
    if mask.requires_grad:
        return "attn_mask: a bias that requires a gradient has to be multiplied by beta row by row"
    if torch.compiler.is_compiling():
        return "attn_mask: compilation cannot tell whether it holds more than 0 and -inf"
    if bool(((mask == 0) | (mask <= masked_below(mask.dtype))).all()):
        return None
    return "attn_mask: a bias (more than 0 and -inf) has to be multiplied by beta row by row"
