"""Specify attention: short, with materialised weights, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sharpmax._attention import temperature
from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import Rows, RowStatistics
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Policy


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Serve everything."""
    return None


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    return rows_of(problem).statistics


def temper(problem: Problem, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and variance of all rows at the inverse temperature beta."""
    return rows_of(problem).tempered(beta)


def attend(
    problem: Problem, beta: Tensor, log_mass: bool = True, maximum: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attend at the inverse temperature beta."""
    rows = rows_of(problem)
    weights = rows.weights(beta)
    if problem.sink is not None and problem.sink_counted:
        weights = weights[..., :-1]
    elif problem.sink is not None:
        # The keys keep z / (z + exp(sink)), where z = sum exp(beta e).
        mass = rows.logsumexp(beta)
        sink = problem.sink.to(mass.dtype)[:, None]
        infinite = torch.isinf(sink)
        kept = torch.sigmoid(mass - torch.where(infinite, 0.0, sink))
        kept = torch.where(infinite, (sink < 0).to(kept.dtype), kept)
        weights = weights * kept[..., None]
    output = _mixed(problem, weights)
    if not log_mass:
        return output, None
    mass = temperature.log_mass(rows.log_mass(beta), rows.statistics.maximum, beta, maximum)
    if problem.sink is not None and not problem.sink_counted:
        mass = torch.logaddexp(mass, sink - (0.0 if maximum is None else beta * maximum))
    return output, mass


def attend_normalised(problem: Problem, normaliser: Normaliser) -> Tensor:
    """Attend with the weights of a normaliser. No other implementation does this."""
    if type(normaliser).forward is Normaliser.forward:
        logits, _, visible = logits_and_visibility(problem, normaliser.logits)
        return _mixed(problem, normaliser.weights(logits, visible))
    # Such a normaliser makes weights from more than logits: there is nothing to add a bias to.
    name = type(normaliser).__name__
    if problem.softcap:
        raise NotImplementedError(f"softcap: normaliser {name} has no logits to cap")
    bias, visible = _bias_and_visibility(problem)
    if bias is not None and bool((bias != 0).any()):
        raise NotImplementedError(f"attn_mask: normaliser {name} has no logits to add a bias to")
    query, key = _promoted(problem)
    return _mixed(problem, normaliser(query, key, scale=problem.scale, visible=visible))


def rows_of(problem: Problem) -> Rows:
    """Return the rows of logits, ready to be weighed at any temperature."""
    return Rows(*logits_and_visibility(problem))


def _product(query: Tensor, key: Tensor, scale: float) -> Tensor:
    product = scale * query @ key.mT
    if _known_finite(query) and _known_finite(key):
        return product
    # Logits of odd queries and keys are what they are, but a hidden one must not spoil gradients.
    finite = torch.isfinite(query), torch.isfinite(key)
    clean = scale * torch.where(finite[0], query, 0.0) @ torch.where(finite[1], key, 0.0).mT
    both = finite[0].all(-1)[..., None] & finite[1].all(-1)[..., None, :]
    return torch.where(both, clean, product.detach())


def _promoted(problem: Problem) -> tuple[Tensor, Tensor]:
    """Query and key in the dtype of statistics, with as many key heads as query heads."""
    query, key = (tensor.to(problem.statistics_dtype) for tensor in (problem.query, problem.key))
    return query, key.repeat_interleave(problem.group, dim=1)


def _bias_and_visibility(problem: Problem) -> tuple[Tensor | None, Tensor]:
    """What is added to the logits, and which of [batch, heads, queries, keys] are visible."""
    shape = (*problem.rows, problem.key.shape[2])
    visible = torch.ones(shape, dtype=torch.bool, device=problem.query.device)
    if (window := problem.in_window()) is not None:
        visible = visible & window
    if problem.attn_mask is None:
        return None, visible
    if problem.attn_mask.dtype == torch.bool:
        return None, visible & problem.attn_mask
    hidden = problem.attn_mask <= masked_below(problem.attn_mask.dtype)
    return problem.attn_mask.masked_fill(hidden, 0.0), visible & ~hidden


def logits_and_visibility(
    problem: Problem, product: Callable[[Tensor, Tensor, float], Tensor] = _product
) -> tuple[Tensor, int, Tensor]:
    """Return the arguments of `Rows`: logits, the axis of keys, and visibility.

    A sink that counts is one more key.
    """
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


def _mixed(problem: Problem, weights: Tensor) -> Tensor:
    """The weighted sum of the values, after dropout."""
    assert problem.value is not None
    if problem.dropout:
        weights = torch.nn.functional.dropout(weights, problem.dropout)
    value = problem.value.to(weights.dtype).repeat_interleave(problem.group, dim=1)
    if _known_finite(problem.value):
        return (weights @ value).to(problem.query.dtype)
    # A value without weight is not there, be it NaN or infinite; zero times it would be NaN.
    output = weights @ torch.where(torch.isfinite(value), value, 0.0)
    seen = (weights != 0).to(weights.dtype)
    odd = (torch.isnan(value), value == torch.inf, value == -torch.inf)
    undefined, above, below = (seen @ kind.to(seen.dtype) > 0 for kind in odd)
    output = torch.where(above, torch.inf, torch.where(below, -torch.inf, output))
    undefined = undefined | (above & below) | torch.isnan(weights.sum(-1, keepdim=True))
    return torch.where(undefined, torch.nan, output).to(problem.query.dtype)


def _known_finite(value: Tensor) -> bool:
    """Whether all values are finite; False where a graph or a transform cannot tell."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return False
    return type(value) in (Tensor, torch.nn.Parameter) and bool(torch.isfinite(value).all())
