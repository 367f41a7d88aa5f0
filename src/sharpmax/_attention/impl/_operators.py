"""The C++ kernels as PyTorch operators, with fakes, gradients and batching rules from import on.

So the first `torch.compile(fullgraph=True)` works. The kernels are compiled when an operator runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax._attention.encode import derivatives
from sharpmax._attention.impl import _build
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form

_LIBRARY: Any = torch.library.Library("sharpmax", "FRAGMENT")
_SETTINGS = "float scale, float softcap, int left, int right, SymInt offset, bool sink_counted"
_LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? sink, Tensor? beta, "
    f"Tensor parameters, int form, bool detach_temperature, {_SETTINGS}) "
    "-> (Tensor output, Tensor maximum, Tensor mass, Tensor moment, Tensor count, Tensor beta_out, "
    "Tensor logmass)"
)
_LIBRARY.define(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, "
    "Tensor? sink, Tensor output, Tensor maximum, Tensor mass, Tensor moment, Tensor count, "
    "Tensor beta, Tensor logmass, Tensor parameters, int form, bool detach_temperature, "
    f"bool mask_gradient, {_SETTINGS}) "
    "-> (Tensor query, Tensor key, Tensor value, Tensor mask, Tensor sink, Tensor parameters)"
)
_LIBRARY.define(
    f"attention_statistics(Tensor query, Tensor key, Tensor? mask, Tensor? sink, {_SETTINGS}) "
    "-> (Tensor maximum, Tensor mass, Tensor moment, Tensor count)"
)


def attention_now(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    beta: Tensor | None,
    parameters: Tensor,
    form: int,
    detach_temperature: bool,
    *settings: float,
) -> tuple[Tensor, ...]:
    """Run the kernel on tensors that hold numbers."""
    forward = _build.load().forward
    results: tuple[Tensor, ...] = forward(
        query, key, value, mask, sink, beta, form, parameters, *settings
    )
    return results


def _attention_fake(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, ...]:
    output = query.new_empty(*query.shape[:3], value.shape[3])
    maximum, mass, moment, count = _statistics_fake(query)
    return output, maximum, mass, moment, count, torch.empty_like(mass), torch.empty_like(mass)


def statistics_now(
    query: Tensor, key: Tensor, mask: Tensor | None, sink: Tensor | None, *settings: float
) -> tuple[Tensor, ...]:
    """Run the kernel on tensors that hold numbers."""
    results: tuple[Tensor, ...] = _build.load().statistics(query, key, mask, sink, *settings)
    return results


def _statistics_fake(query: Tensor, *_: object) -> tuple[Tensor, ...]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    entries = [query.new_empty(query.shape[:3], dtype=dtype) for _ in range(3)]
    return *entries, query.new_empty(query.shape[:3], dtype=torch.int64)


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    output: Tensor,
    maximum: Tensor,
    mass: Tensor,
    moment: Tensor,
    count: Tensor,
    beta: Tensor,
    logmass: Tensor,
    parameters: Tensor,
    form: int,
    detach_temperature: bool,
    mask_gradient: bool,
    *settings: float,
) -> tuple[Tensor, ...]:
    kernels, statistics = _build.load(), RowStatistics(maximum, mass, moment, count)
    row_terms, parameter_gradient = _Terms(), torch.zeros_like(parameters)
    if not detach_temperature and form not in (Form.GIVEN, Form.HARD):
        by_beta, mean, variance = kernels.row_gradient(
            gradient, query, key, value, mask, sink, output, beta, logmass, maximum, *settings
        )
        by_beta = torch.where(count == 0, 0.0, by_beta)
        row_terms, by_parameter = _through_temperature(
            form, parameters, by_beta, mean, variance, statistics, beta
        )
        # [batch, heads, queries] to [heads or 1]
        for column, values in enumerate(by_parameter):
            per_head = (by_beta * values).sum(dim=(0, 2)).to(parameters.dtype)
            parameter_gradient[:, column] = per_head if len(parameters) > 1 else per_head.sum()
    by_query, by_key, by_value, by_mask, by_sink = kernels.backward(
        gradient, query, key, value, mask, sink, output, beta, logmass, maximum, mass,
        *row_terms, *settings, mask_gradient,
    )  # fmt: skip
    by_mask = by_mask.to(query.dtype if mask is None else mask.dtype)
    by_sink = by_sink.to(query.dtype if sink is None else sink.dtype)
    return by_query, by_key, by_value, by_mask, by_sink, parameter_gradient


def _attention_backward_fake(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    parameters, mask_gradient = rest[7], rest[10]
    shape = (*query.shape[:3], key.shape[2])
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        (query if mask is None else mask).new_empty(shape if mask_gradient else 0),
        query.new_empty(0) if sink is None else sink.new_empty(sink.shape),
        parameters.new_empty(parameters.shape),
    )


class _Terms(NamedTuple):
    """What the temperature adds to the gradient of a logit of a row.

    c0 p0 (e - mu0) + c1 p (e - mu1), with p0 = softmax(e) and p = softmax(beta e).
    """

    c0: Tensor | None = None
    mu0: Tensor | None = None
    c1: Tensor | None = None
    mu1: Tensor | None = None


def _through_temperature(
    form: int,
    parameters: Tensor,
    by_beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    statistics: RowStatistics,
    beta: Tensor,
) -> tuple[_Terms, list[Tensor]]:
    """From the gradient by beta to that of the logits, and d beta / d parameter of each row."""
    if form == Form.TARGET:
        # beta solves H(beta e) = target: its derivative by e_j is -beta p_j (e_j - mean) / Var,
        # by the target -1 / (beta Var). Rows that were left alone or hit the limit have none.
        limit = parameters[:, 1, None].to(beta.dtype)
        solved = (beta > 1.0) & (beta < limit) & (variance > 0.0)
        inverse = torch.where(solved, 1.0 / torch.where(solved, variance, 1.0), 0.0)
        terms = _Terms(c1=-by_beta * beta * inverse, mu1=mean)
        return terms, [-inverse / beta, torch.zeros_like(beta)]
    by_entropy, by_parameter = derivatives(
        Form(form), parameters, statistics.entropy(), statistics.count, beta
    )
    if by_entropy is None:
        return _Terms(), by_parameter
    # d H / d e_j = -p0_j (e_j - E_p0[e]), and E_p0[e] = maximum + moment / mass.
    mean_of_row = statistics.maximum + statistics.moment / statistics.mass
    occupied = statistics.count > 0
    return _Terms(
        c0=torch.where(occupied, -by_beta * by_entropy, 0.0),
        mu0=torch.where(occupied, mean_of_row, 0.0),
    ), by_parameter


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, mask, sink, _, parameters, *ctx.settings = inputs
    result, *rows = output
    ctx.save_for_backward(query, key, value, mask, sink, result, *rows, parameters)
    ctx.mark_non_differentiable(*rows)


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    form, detach_temperature, *settings = ctx.settings
    wants_mask, wants_sink = ctx.needs_input_grad[3], ctx.needs_input_grad[4]
    by_query, by_key, by_value, by_mask, by_sink, by_parameters = attention_backward(
        gradient, *ctx.saved_tensors, form, detach_temperature, wants_mask, *settings
    )
    return (
        by_query,
        by_key,
        by_value,
        by_mask if wants_mask else None,
        by_sink if wants_sink else None,
        None,
        by_parameters,
        *([None] * len(ctx.settings)),
    )


def _no_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise NotImplementedError(
        "sharpmax.attention: the CPU kernels have no second derivative; impl='reference' has"
    )


def _batched(operator: Callable[..., tuple[Tensor, ...]], tensors: int, heads_first: int) -> Any:
    """A batching rule that folds the mapped axis into the batch.

    Of the first `tensors` arguments those up to `heads_first` have a batch to fold into. Others (a
    sink, the parameters of a policy) hold for all batches, and must not be mapped over.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        size, folded = info.batch_size, list(arguments)
        for k in range(tensors):
            if folded[k] is None:
                continue
            if k >= heads_first:
                if in_dims[k] is not None:
                    raise NotImplementedError(
                        "sharpmax.attention: vmap over a sink or the parameters of a policy is "
                        "not supported; map over query, key, value and mask"
                    )
                continue
            tensor = folded[k]
            tensor = (
                tensor.unsqueeze(0).expand(size, *tensor.shape)
                if in_dims[k] is None
                else tensor.movedim(in_dims[k], 0)
            )
            folded[k] = tensor.flatten(0, 1)
        results = operator(*folded)
        return tuple(result.unflatten(0, (size, -1)) for result in results), (0,) * len(results)

    return rule


attention = torch.ops.sharpmax.attention.default
attention_backward = torch.ops.sharpmax.attention_backward.default
attention_statistics = torch.ops.sharpmax.attention_statistics.default

_LIBRARY.impl("attention", attention_now, "CPU")
_LIBRARY.impl("attention_backward", _attention_backward, "CPU")
_LIBRARY.impl("attention_statistics", statistics_now, "CPU")
torch.library.register_fake("sharpmax::attention", _attention_fake, lib=_LIBRARY)
torch.library.register_fake("sharpmax::attention_backward", _attention_backward_fake, lib=_LIBRARY)
torch.library.register_fake("sharpmax::attention_statistics", _statistics_fake, lib=_LIBRARY)
torch.library.register_autograd(
    "sharpmax::attention", _backward, setup_context=_keep_for_backward, lib=_LIBRARY
)
torch.library.register_autograd("sharpmax::attention_backward", _no_second_derivative, lib=_LIBRARY)
torch.library.register_vmap("sharpmax::attention", _batched(attention, 7, 4), lib=_LIBRARY)
torch.library.register_vmap(
    "sharpmax::attention_statistics", _batched(attention_statistics, 4, 3), lib=_LIBRARY
)
