"""What attention must give, written from docs/attention.md alone: dense, in any precision.

Nothing of sharpmax is imported here. In float64 this is the oracle; in the precision of a case it
is the yardstick for rounding: an implementation may err as much as this does, times a small factor.
Everything is plain tensor algebra, so that autograd gives the gradients.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Answer", "attention"]

PAPER = (-0.037, 0.481, -2.3, 4.917, -1.791)
_CURVES = ("knots", "coefficients")

_BISECTIONS = {torch.float64: 60, torch.float32: 30}
"""They halve a bracket of log beta, at most 14 wide, down to the precision."""

_FAR = 1e4
"""exp(-_FAR) is zero in every precision."""

_FAINT = 1e-4
"""A NaN or an infinity among the values makes a row odd if its weight is above this, and does not
exist if it is hidden. In between, the row is not compared: an implementation may round to zero."""


@dataclass(frozen=True)
class Answer:
    """The right result for every row.

    Attributes:
        output: [batch, heads, queries, value width].
        maximum: largest visible logit; -inf for a row that sees nothing.
        entropy: of the untempered row, in nats.
        count: the number of visible logits.
        beta: the inverse temperature.
        margin: how far the row is from a kink of its policy, from another choice of the maximum
            under `hard`, or from seeing a NaN among the values; below the rounding of a precision,
            that precision cannot decide the row.
    """

    output: Tensor
    maximum: Tensor
    entropy: Tensor
    count: Tensor
    beta: Tensor
    margin: Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    policy: tuple[str, dict[str, Any]],
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    alignment: str = "upper_left",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    sink_role: str = "key",
    detach_temperature: bool = False,
) -> Answer:
    """Attend densely; `mask` is boolean, or floating with -inf for what is hidden."""
    dtype, group = query.dtype, query.shape[1] // max(key.shape[1], 1)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits, visible = _logits(query, key, mask, is_causal, alignment, window, scale, softcap)
    # What a row does not see does not exist: neither its logit nor its value.
    visible = visible & ~torch.isneginf(logits.detach())
    if sink is not None and sink_role == "key":
        column = sink.to(dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], -1)
        visible = torch.cat([visible, ~torch.isneginf(column)], -1)
    row = _Row(logits, visible)
    beta, margin = _inverse_temperature(policy, row)
    beta = torch.where(row.count == 0, 1.0, beta)
    if detach_temperature:
        beta = beta.detach()
    weights = row.weights(beta)
    if sink is not None and sink_role == "apart":
        weights = weights * row.share_beside(sink.to(dtype)[None, :, None], beta)[..., None]
    if sink is not None and sink_role == "key":
        weights = weights[..., :-1]
    output, faint = _mix(weights, visible[..., : key.shape[2]], value)
    margin = torch.where(faint, 0.0, margin)
    return Answer(output, row.maximum, row.entropy, row.count, beta, margin)


def _logits(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    alignment: str,
    window: int | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    queries, keys = query.shape[2], key.shape[2]
    scale = max(query.shape[3], 1) ** -0.5 if scale is None else scale
    logits = scale * (query @ key.mT)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    shift = keys - queries if alignment == "lower_right" else 0
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - shift
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if is_causal:
        visible &= distance <= 0
    if window is not None:
        visible &= distance > -window
        if not is_causal:
            visible &= distance < window
    visible = visible.expand(logits.shape)
    if mask is None:
        return logits, visible
    mask = mask.broadcast_to(logits.shape)
    if mask.dtype == torch.bool:
        return logits, visible & mask
    hidden = torch.isneginf(mask)
    bias = torch.where(hidden, torch.zeros_like(mask), mask)
    return logits + bias.to(logits.dtype), visible & ~hidden


class _Row:
    """Rows of logits relative to their maximum; +inf entries share a row evenly."""

    def __init__(self, logits: Tensor, visible: Tensor) -> None:
        self.count = visible.sum(-1)
        shown = torch.where(visible, logits, -math.inf)
        nan = (visible & torch.isnan(logits)).any(-1)
        keys = logits.shape[-1]
        if keys:
            self.maximum = shown.amax(-1)
        else:
            self.maximum = torch.full(logits.shape[:-1], -math.inf, dtype=logits.dtype)
        self.maximum = torch.where(nan, math.nan, self.maximum).detach()
        peak = self.maximum[..., None]
        infinite = torch.isposinf(peak)
        self.weighed = visible & (~infinite | torch.isposinf(logits))
        base = torch.where(torch.isinf(peak), 0.0, peak)
        settled = torch.where(self.weighed & ~torch.isposinf(logits), logits, base)
        # Halves, so that the difference of two huge numbers does not overflow.
        self.gap = 2.0 * (0.5 * settled - 0.5 * base)
        self.infinite = infinite[..., 0]
        self.nan = nan
        mass, mean, _ = self.moments(torch.ones_like(self.maximum))
        self.entropy = torch.where(nan, math.nan, mass.log() - mean)

    def moments(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mass of exp(beta gap), and mean and variance of the gap under it; mass 1 if empty."""
        weight = self.unnormalised(beta)
        mass = weight.sum(-1)
        mass = torch.where(mass == 0, 1.0, mass)
        mean = (weight * self.gap).sum(-1) / mass
        spread = (weight * (self.gap - mean[..., None]) ** 2).sum(-1) / mass
        return mass, mean, spread

    def entropy_at(self, beta: Tensor) -> Tensor:
        """Entropy at a finite beta of at least 1."""
        beta = beta[..., None]
        gap = torch.where(self.weighed, self.gap, -_FAR / beta)
        weight = (beta * gap).exp()
        mass = weight.sum(-1)
        mean = (weight * gap).sum(-1) / torch.where(mass == 0, 1.0, mass)
        return torch.where(mass == 0, 0.0, mass.log() - beta[..., 0] * mean)

    def unnormalised(self, beta: Tensor) -> Tensor:
        hard = torch.isposinf(beta)
        weight = (torch.where(hard, 1.0, beta)[..., None] * self.gap).exp()
        return torch.where(self.weighed & ~(hard[..., None] & (self.gap < 0)), weight, 0.0)

    def weights(self, beta: Tensor) -> Tensor:
        weight = self.unnormalised(beta)
        total = weight.sum(-1, keepdim=True)
        weight = weight / torch.where(total == 0, 1.0, total)
        return torch.where((self.nan | torch.isnan(beta))[..., None], math.nan, weight)

    def share_beside(self, sink: Tensor, beta: Tensor) -> Tensor:
        """What the keys keep beside a sink that stands apart: z / (z + exp(sink))."""
        mass, _, _ = self.moments(beta)
        peak = torch.where(torch.isinf(self.maximum) | (self.maximum == 0), 0.0, self.maximum)
        share = torch.sigmoid(beta * peak + mass.log() - sink)
        share = torch.where(self.infinite, torch.where(torch.isposinf(sink), 0.0, 1.0), share)
        return torch.where(self.count == 0, 0.0, share)


def _mix(weights: Tensor, visible: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the visible values, and whether a faint weight is on one that is odd."""
    finite = torch.isfinite(value.detach())
    output = weights @ torch.where(finite, value, 0.0)
    if bool(finite.all()):
        return output, torch.zeros(weights.shape[:-1], dtype=torch.bool)
    odd = torch.where(finite, 0.0, value)[..., None, :, :]
    seen = visible[..., None] & (weights != 0)[..., None] & ~finite[..., None, :, :]
    output = output + torch.where(seen, weights.detach()[..., None] * odd, 0.0).sum(-2)
    some = visible & ~finite.all(-1)[..., None, :]
    return output, (some & (weights.detach() < _FAINT)).any(-1)


def _inverse_temperature(policy: tuple[str, dict[str, Any]], row: _Row) -> tuple[Tensor, Tensor]:
    """beta of each row, and the distance to the nearest kink of the rule, in its own units."""
    name, given = policy
    H, far = row.entropy, torch.full_like(row.entropy, math.inf)
    number = {key: _over_rows(value, H) for key, value in given.items() if key not in _CURVES}
    if name == "identity":
        return torch.ones_like(H), far
    if name == "constant":
        return number["beta"].expand_as(H), far
    if name == "hard":
        second = torch.where(row.weighed & (row.gap < 0), row.gap, -math.inf).detach()
        margin = -second.amax(-1) if second.shape[-1] else far
        return torch.full_like(H, math.inf), margin
    if name == "exponential":
        excess = H - number["reference"]
        return (number["strength"] * excess.clamp(min=0.0)).exp(), excess.abs()
    if name == "log_length":
        logarithm = row.count.clamp(min=1).to(H.dtype).log()
        beta = number["scale"] * logarithm / math.log(given["train_length"])
        return beta.clamp(min=1.0), (beta - 1.0).abs()
    if name in ("paper", "polynomial"):
        guard = 1e-9 if name == "paper" else 0.0
        coefficients = PAPER if name == "paper" else given["coefficients"]
        guarded = H - guard * row.count
        value = torch.zeros_like(H)
        for coefficient in coefficients:
            value = value * guarded + coefficient
        above = guarded > number["threshold"]
        margin = torch.minimum((guarded - number["threshold"]).abs(), (value - 1.0).abs())
        return torch.where(above, value.clamp(min=1.0), 1.0), margin
    if name == "monotone":
        return _monotone(given["knots"], H)
    assert name == "entropy_target", name
    return _entropy_target(number["target"], number["limit"], row)


def _over_rows(value: Any, like: Tensor) -> Tensor:
    """A number, or one per head, against [batch, heads, queries]."""
    number = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    return number.to(like.dtype)[:, None] if number.ndim == 1 else number.to(like.dtype)


def _monotone(knots: tuple[tuple[float, float], ...], H: Tensor) -> tuple[Tensor, Tensor]:
    """log beta linear between knots, constant below, slope 1 above."""
    points = [(entropy, math.log(beta)) for entropy, beta in knots]
    logarithm = torch.full_like(H, points[0][1])
    for (left, low), (right, high) in itertools.pairwise(points):
        inside = low + (high - low) / (right - left) * (H - left)
        logarithm = torch.where((left < H) & (right >= H), inside, logarithm)
    last, top = points[-1]
    logarithm = torch.where(last < H, top + H - last, logarithm)
    margin = torch.stack([(H - entropy).abs() for entropy, _ in points]).amin(0)
    return logarithm.clamp(min=0.0).exp(), margin


def _entropy_target(target: Tensor, limit: Tensor, row: _Row) -> tuple[Tensor, Tensor]:
    """The beta in [1, limit] at which H is the target, by bisection, with its implicit derivative.

    At the ends the derivative is that of the end: 0 at beta = 1, that of `limit` at the limit.
    """
    with torch.no_grad():
        low, high = torch.zeros_like(row.entropy), limit.log().expand_as(row.entropy).clone()
        if bool((row.entropy > target).any()):
            for _ in range(_BISECTIONS[row.entropy.dtype]):
                middle = 0.5 * (low + high)
                above = row.entropy_at(middle.exp()) > target
                low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        found = (0.5 * (low + high)).exp()
        at_limit = row.entropy_at(limit.expand_as(found)) - target
    mass, mean, variance = row.moments(found)
    slope = (found * variance).detach()
    excess = mass.log() - found * mean - target
    inside = found + excess / torch.where(slope == 0, 1.0, slope)
    beta = torch.where(at_limit > 0, limit.expand_as(found), inside)
    margin = torch.minimum((row.entropy - target).abs(), at_limit.abs()).detach()
    return torch.where(row.entropy > target, beta, 1.0), margin
