"""The specification: short, materialised, quadratic in memory, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import Rows, RowStatistics
from sharpmax.policies import Policy


def unsupported(problem: Problem, policy: Policy | None, detach_temperature: bool) -> str | None:
    """The specification serves everything."""
    return None


def attend(
    problem: Problem, policy: Policy, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Output and statistics of all rows."""
    assert problem.value is not None
    rows = Rows(*_logits_and_visibility(problem))
    beta = policy.over_queries().of_rows(rows)
    if detach_temperature:
        beta = beta.detach()
    weights = rows.weights(beta)
    if problem.sink is not None:
        weights = (
            weights[..., :-1] if problem.sink_counted else weights * _kept(problem, rows, beta)
        )
    if problem.dropout:
        weights = torch.nn.functional.dropout(weights, problem.dropout)
    value = problem.value.to(weights.dtype).repeat_interleave(problem.group, dim=1)
    output = (weights @ value).to(problem.query.dtype)
    return output, RowStatistics(*(entry.detach() for entry in rows.statistics))


def measure(problem: Problem) -> RowStatistics:
    """Statistics of all rows."""
    return Rows(*_logits_and_visibility(problem)).statistics


def _logits_and_visibility(problem: Problem) -> tuple[Tensor, int, Tensor]:
    """Logits [batch, heads, queries, keys] and what is visible of them; a counted sink is a key."""
    query, key = (tensor.to(problem.statistics_dtype) for tensor in (problem.query, problem.key))
    logits = problem.scale * query @ key.repeat_interleave(problem.group, dim=1).transpose(-2, -1)
    if problem.softcap:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    visible = torch.ones_like(logits, dtype=torch.bool)
    if (window := problem.in_window()) is not None:
        visible = visible & window
    if problem.mask is not None:
        if problem.mask.dtype == torch.bool:
            visible = visible & problem.mask
        else:
            hidden = problem.mask <= masked_below(problem.mask.dtype)
            visible = visible & ~hidden
            logits = logits + problem.mask.masked_fill(hidden, 0.0).to(logits.dtype)
    if problem.sink is not None and problem.sink_counted:
        sink = problem.sink.to(logits.dtype)[:, None, None].expand(*problem.rows, 1)
        logits = torch.cat([logits, sink], dim=-1)
        visible = torch.cat([visible, torch.ones_like(sink, dtype=torch.bool)], dim=-1)
    return logits, -1, visible


def _kept(problem: Problem, rows: Rows, beta: Tensor) -> Tensor:
    """What keys keep beside a sink that is apart: z / (z + exp(sink)), z = sum exp(beta e)."""
    assert problem.sink is not None
    sink = problem.sink.to(beta.dtype)[:, None]
    return torch.sigmoid(rows.logsumexp(beta) - sink)[..., None]
