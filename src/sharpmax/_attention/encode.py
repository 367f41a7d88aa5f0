"""Policies as numbers: the few forms of a rule that kernels know, and their derivatives.

A form and a table of parameters, [heads or 1, parameters], say all that a kernel needs:

    GIVEN       beta comes in as a tensor: policies that only Python knows
    CONSTANT    c                           beta = c
    RAMPS       b, (knot, slope, width)...  beta = exp(max(0, b + r)),
                                            r = sum slope clip(H - knot, 0, width)
    POLYNOMIAL  threshold, guard, c...      beta = max(1, p(H - guard n)) above the threshold
    LENGTH      a                           beta = max(1, a log n)
    TARGET      target, limit               H(softmax(beta e)) = target
    HARD                                    beta = inf
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharpmax.policies import Form, Policy


def form_of(policy: Policy) -> Form:
    """The form of a policy; GIVEN for one without a closed form."""
    found = policy.kernel_form()
    return Form.GIVEN if found is None else found.form


def parameters_of(policy: Policy, heads: int) -> Tensor:
    """The table of parameters, float64, differentiable in parameters that are tensors.

    Raises:
        ValueError: for a parameter that is neither a number nor an array with an entry a head.
    """
    if torch.compiler.is_compiling():
        return _table(policy, heads)
    # Made once for a policy without tensors: a decoding step is short enough to feel it.
    known: Tensor | None = policy.__dict__.get("_table")
    if known is None or (len(known) > 1 and len(known) != heads):
        known = _table(policy, heads)
        if not any(isinstance(value, Tensor) for value in policy.__dict__.values()):
            object.__setattr__(policy, "_table", known)
    return known


def _table(policy: Policy, heads: int) -> Tensor:
    form = policy.kernel_form()
    if form is None:
        return torch.zeros(1, 0, dtype=torch.float64)
    columns = form.columns
    if not columns:
        return torch.zeros(1, 0, dtype=torch.float64)
    if all(isinstance(column, int | float) for column in columns):
        return torch.tensor([columns], dtype=torch.float64)
    tensors = [torch.as_tensor(column, dtype=torch.float64, device="cpu") for column in columns]
    for column in tensors:
        if column.ndim > 1 or (column.ndim == 1 and len(column) not in (1, heads)):
            raise ValueError(
                f"policy: expected parameters that are numbers or have one entry for each of the "
                f"{heads} query heads, got shape {tuple(column.shape)} in {policy!r}"
            )
    return torch.stack(torch.broadcast_tensors(*(torch.atleast_1d(t) for t in tensors)), dim=-1)


def derivatives(
    form: Form, parameters: Tensor, entropy: Tensor, count: Tensor, beta: Tensor
) -> tuple[Tensor | None, list[Tensor]]:
    """d beta / d H, and d beta / d parameter for each parameter, of rows [batch, heads, queries].

    None stands for a rule that does not depend on the entropy.
    """
    columns = [p[:, None] for p in parameters.to(entropy.dtype).unbind(-1)]
    zero = torch.zeros_like(entropy)
    if form == Form.CONSTANT:
        return None, [zero + 1.0]
    if form == Form.LENGTH:
        logarithm = torch.log(count.clamp(min=1).to(entropy.dtype))
        return None, [torch.where(columns[0] * logarithm > 1.0, logarithm, 0.0)]
    if form == Form.RAMPS:
        ramps = list(zip(columns[1::3], columns[2::3], columns[3::3], strict=True))
        total = zero + columns[0]
        for knot, slope, width in ramps:
            total = total + slope * torch.minimum((entropy - knot).clamp(min=0), width)
        # Through the exponential and its clip, which is inclusive: slopes of zero can grow.
        live = torch.where(total >= 0, beta, 0.0)
        slope_of_log, by_parameter = zero, [live]
        for knot, slope, width in ramps:
            excess = entropy - knot
            inside = ((excess > 0) & (excess < width)).to(entropy.dtype)
            slope_of_log = slope_of_log + slope * inside
            beyond = (excess >= width).to(entropy.dtype)
            by_parameter += [
                -live * slope * inside,
                live * torch.minimum(excess.clamp(min=0), width),
                live * slope * beyond,
            ]
        return live * slope_of_log, by_parameter
    if form == Form.POLYNOMIAL:
        _, guard, *coefficients = columns
        guarded = entropy - guard * count
        live = (beta > 1.0).to(entropy.dtype)
        value, slope = zero, zero
        for coefficient in coefficients:
            slope = slope * guarded + value
            value = value * guarded + coefficient
        powers = [live * guarded**k for k in reversed(range(len(coefficients)))]
        return live * slope, [zero, -live * slope * count, *powers]
    raise AssertionError(f"{form} has no derivative of this kind")
