"""Two passes over PyTorch's own kernels, on any device: one measures the rows, one attends.

The second pass is `scaled_dot_product_attention` with each query multiplied by the inverse
temperature of its row. So it serves where beta may be moved into the query: not behind a softcap,
a bias or a sink.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpmax._attention.impl import reference
from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Hard, Policy

LOGITS_AT_ONCE = 1 << 22
"""The first pass takes as many queries at a time as keep the logits below this number."""


def unsupported(problem: Problem, policy: Policy | None, detach_temperature: bool) -> str | None:
    """What two passes over stock kernels cannot do exactly."""
    if policy is None:
        return None
    if problem.softcap:
        return "softcap: beta acts behind the cap, where a stock kernel has no place for it"
    if problem.sink is not None:
        return "sink: the stock kernel has none"
    if problem.dropout:
        return "dropout_p: the stock kernel would not show which weights it dropped"
    if isinstance(policy, Hard):
        return "policy: an infinite beta cannot be multiplied into the query"
    if policy.needs_logits:
        return f"policy: {type(policy).__name__} has to weigh the rows again and again"
    if problem.mask is not None and problem.mask.is_floating_point():
        return _unsupported_mask(problem.mask)
    return None


def attend(
    problem: Problem, policy: Policy, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Output and statistics of all rows."""
    assert problem.value is not None
    differentiate = torch.is_grad_enabled() and not detach_temperature
    with torch.set_grad_enabled(differentiate):
        statistics = _measured(problem, differentiate)
        beta = policy.over_queries().inverse_temperature(statistics)
        beta = torch.where(statistics.count == 0, 1.0, beta)
    # In half precision the product with beta would be rounded; so the pass is in single then.
    dtype = problem.statistics_dtype
    only_causal = problem.right == 0 and problem.left < 0 and problem.offset == 0
    output = F.scaled_dot_product_attention(
        problem.query.to(dtype) * beta[..., None],
        problem.key.to(dtype),
        problem.value.to(dtype),
        attn_mask=_boolean_mask(problem, with_window=not only_causal),
        is_causal=only_causal and problem.mask is None,
        scale=problem.scale,
        enable_gqa=problem.group > 1,
    )
    output = torch.where((statistics.count == 0)[..., None], 0.0, output).to(problem.query.dtype)
    return output, RowStatistics(*(entry.detach() for entry in statistics))


def measure(problem: Problem) -> RowStatistics:
    """Statistics of all rows, some queries at a time."""
    return _measured(problem, differentiate=False)


def _measured(problem: Problem, differentiate: bool) -> RowStatistics:
    batch, heads, queries = problem.rows
    per_query = max(batch * heads * problem.key.shape[2], 1)
    step = max(LOGITS_AT_ONCE // per_query, 1)
    blocks = []
    for start in range(0, max(queries, 1), step):
        block = problem.rows_between(start, start + step)
        if differentiate:
            # Computed again in the backward pass rather than kept: memory stays linear.
            blocks.append(
                torch.utils.checkpoint.checkpoint(reference.measure, block, use_reentrant=False)
            )
        else:
            blocks.append(reference.measure(block))
    return RowStatistics(*(torch.cat(entries, dim=-1) for entries in zip(*blocks, strict=True)))


def _boolean_mask(problem: Problem, with_window: bool) -> Tensor | None:
    visible = problem.in_window() if with_window or problem.mask is not None else None
    if problem.mask is None:
        return visible
    mask = problem.mask
    if mask.is_floating_point():
        mask = mask > masked_below(mask.dtype)
    return mask if visible is None else mask & visible


def _unsupported_mask(mask: Tensor) -> str | None:
    if mask.requires_grad:
        return "attn_mask: a bias that wants a gradient has to be multiplied by beta row by row"
    if torch.compiler.is_compiling():
        return "attn_mask: compilation cannot tell whether it holds more than 0 and -inf"
    if bool(((mask == 0) | (mask <= masked_below(mask.dtype))).all()):
        return None
    return "attn_mask: a bias (more than 0 and -inf) has to be multiplied by beta row by row"
