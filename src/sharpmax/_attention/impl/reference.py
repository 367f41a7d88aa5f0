"""The specification: short, materialised, quadratic in memory, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import Rows, RowStatistics
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Policy


def unsupported(problem: Problem, policy: Policy | None, detach_temperature: bool) -> str | None:
    """The specification serves everything."""
    return None


def attend(
    problem: Problem, policy: Policy, detach_temperature: bool
) -> tuple[Tensor, RowStatistics]:
    """Output and statistics of all rows."""
    rows = Rows(*logits_and_visibility(problem))
    beta = policy.over_queries().of_rows(rows)
    if detach_temperature:
        beta = beta.detach()
    weights = rows.weights(beta)
    if problem.sink is not None:
        weights = (
            weights[..., :-1] if problem.sink_counted else weights * _kept(problem, rows, beta)
        )
    return _mixed(problem, weights), RowStatistics(*(entry.detach() for entry in rows.statistics))


def attend_normalised(problem: Problem, normaliser: Normaliser) -> Tensor:
    """Output of all rows, with weights from a normaliser; this implementation alone does it."""
    if type(normaliser).forward is Normaliser.forward:
        logits, _, visible = logits_and_visibility(problem, normaliser.logits)
        return _mixed(problem, normaliser.weights(logits, visible))
    # Its weights come from more than logits, so that there is nothing for a bias to be added to.
    name = type(normaliser).__name__
    if problem.softcap:
        raise NotImplementedError(f"softcap: normaliser {name} has no logits to cap")
    bias, visible = _bias_and_visibility(problem)
    if bias is not None and bool((bias != 0).any()):
        raise NotImplementedError(f"attn_mask: normaliser {name} has no logits to add a bias to")
    query, key = _promoted(problem)
    return _mixed(problem, normaliser(query, key, scale=problem.scale, visible=visible))


def measure(problem: Problem) -> RowStatistics:
    """Statistics of all rows."""
    return Rows(*logits_and_visibility(problem)).statistics


def _product(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return scale * query @ key.mT


def _promoted(problem: Problem) -> tuple[Tensor, Tensor]:
    """Query and key in the dtype of statistics, with as many heads of keys as of queries."""
    query, key = (tensor.to(problem.statistics_dtype) for tensor in (problem.query, problem.key))
    return query, key.repeat_interleave(problem.group, dim=1)


def _bias_and_visibility(problem: Problem) -> tuple[Tensor | None, Tensor]:
    """What is added to the logits, and what is visible of [batch, heads, queries, keys]."""
    shape = (*problem.rows, problem.key.shape[2])
    visible = torch.ones(shape, dtype=torch.bool, device=problem.query.device)
    if (window := problem.in_window()) is not None:
        visible = visible & window
    if problem.mask is None:
        return None, visible
    if problem.mask.dtype == torch.bool:
        return None, visible & problem.mask
    hidden = problem.mask <= masked_below(problem.mask.dtype)
    return problem.mask.masked_fill(hidden, 0.0), visible & ~hidden


def logits_and_visibility(
    problem: Problem, product: Callable[[Tensor, Tensor, float], Tensor] = _product
) -> tuple[Tensor, int, Tensor]:
    """Logits [batch, heads, queries, keys] and what is visible of them; a counted sink is a key."""
    logits = product(*_promoted(problem), problem.scale)
    if problem.softcap:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    bias, visible = _bias_and_visibility(problem)
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
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


def _mixed(problem: Problem, weights: Tensor) -> Tensor:
    """The values, in the proportion of the weights."""
    assert problem.value is not None
    if problem.dropout:
        weights = torch.nn.functional.dropout(weights, problem.dropout)
    value = problem.value.to(weights.dtype).repeat_interleave(problem.group, dim=1)
    return (weights @ value).to(problem.query.dtype)
