"""Sharpen a row until it has a given entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import Neutral, Policy, Tempered


@dataclass(frozen=True, eq=False)
class EntropyTarget(Policy):
    """Sharpen a row until its entropy is the target: H(softmax(beta e)) = target, in nats.

    Rows at or below the target are left alone (beta = 1). The equation has one solution, since
    dH/dbeta = -beta Var(e) <= 0. At most 33 measurements of the rows find it to 1e-4 nats; if a
    range of betas comes that near, beta is one of them. A row gets beta = limit if the solution
    lies beyond the limit, or if there is none because more than exp(target) logits tie for the
    maximum.

    Gradients are those of the solution (implicit differentiation), not of the steps to it. A row
    that is left alone has none: its beta stays 1. At the limit beta follows the limit alone, and
    neither the logits nor the target move it.

    Attributes:
        target: the entropy, in nats.
        limit: the largest beta.

    Example:
        >>> import numpy as np, sharpmax
        >>> logits = np.linspace(-1.0, 0.0, 1000)
        >>> beta = sharpmax.inverse_temperature(logits, EntropyTarget(target=1.0))
        >>> round(float(sharpmax.entropy(beta * logits)), 3)
        1.0
    """

    neutral = Neutral("target", 1e30)
    STEPS: ClassVar[int] = 32
    needs_logits: ClassVar[bool] = True

    target: Array | float = parameter(at_least=0.0)
    limit: Array | float = parameter(1e6, at_least=1.0)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        if tempered is None:
            raise TypeError("EntropyTarget: expected the tempered rows (`tempered`), got None")
        entropy = statistics.entropy()
        xp = namespace(entropy, self.target, self.limit)
        target = xp.asarray(self.target, like=entropy)
        limit = xp.asarray(self.limit, like=entropy)

        # Newton's method in t = log(beta). It starts where normal logits would have the target,
        # since those lose entropy with beta^2. Until a beta is too large, a step is at most twice
        # the one before. Then the solution is in a bracket, which halves whenever a step leaves it
        # or is not half of the one before. A row that is done stays: no row depends on others.
        lower = 0.0 * entropy + 0.0 * target
        upper = xp.log(limit) + lower
        precision = math.sqrt(xp.finfo(entropy.dtype).eps)
        uniform = xp.log(xp.clip(xp.astype(statistics.count, like=entropy), 1.0, None))
        lost, to_lose = (xp.clip(uniform - x, precision, None) for x in (entropy, target))
        position = xp.clip(0.5 * xp.log(to_lose / lost), lower, upper)
        last, bracketed, done = 0.5 + lower, lower > upper, ~(entropy + lower > target)

        def improve(
            position: Array, lower: Array, upper: Array, last: Array, bracketed: Array, done: Array
        ) -> tuple[Array, ...]:
            beta = xp.exp(position)
            excess, slope = _excess_and_slope(xp.stop_gradient(beta), tempered, target)
            lower = xp.where(excess > 0, position, lower)
            upper = xp.where(excess > 0, upper, position)
            bracketed = bracketed | ~(excess > 0)
            newton = position + excess / (slope * beta)
            outward = xp.minimum(xp.minimum(newton, position + 2.0 * last), upper)
            good = (newton >= lower) & (newton <= upper) & (abs(newton - position) < 0.5 * last)
            inward = xp.where(good, newton, 0.5 * (lower + upper))
            following = xp.where(bracketed, inward, outward)
            last = abs(following - position)
            position = xp.where(done, position, following)
            # After so small a step, or at so small an excess, the next one is lost in rounding.
            done = done | ~((last > precision) & (abs(excess) > 16 * precision**2))
            return position, lower, upper, last, bracketed, done

        position, *_ = xp.iterate(
            self.STEPS, improve, position, lower, upper, last, bracketed, done
        )
        beta = xp.stop_gradient(xp.exp(position))

        # One more Newton step: its derivative is that of the solution.
        excess, slope = _excess_and_slope(beta, tempered, target)
        refined = xp.clip(beta + excess / xp.stop_gradient(slope), 1.0, limit)
        return xp.where(entropy > target, refined, 1.0)

    def kernel_form(self) -> KernelForm:
        return KernelForm(Form.TARGET, [self.target, self.limit])


def _excess_and_slope(beta: Array, tempered: Tempered, target: Array) -> tuple[Array, Array]:
    """H(beta) - target, and -dH/dbeta = beta Var, bounded below for rows that are all ties."""
    entropy, variance = tempered(beta)
    xp = namespace(entropy)
    return entropy - target, xp.clip(beta * variance, math.sqrt(1.2e-38), None)
