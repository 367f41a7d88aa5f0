"""Register the C++ kernels as PyTorch operators, with fakes, gradients and batching rules.

They are registered at import, so that the first `torch.compile(fullgraph=True)` works. The kernels
are loaded when an operator first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sharpmax import kernels
from sharpmax._attention.impl._batching import batched
from sharpmax._attention.impl._framework import TORCH
from sharpmax._attention.temperature import Terms, through_policy, through_statistics
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form

_LIBRARY: Any = torch.library.Library("sharpmax", "FRAGMENT")
_SETTINGS = "float scale, float softcap, int left, int right, SymInt offset, bool sink_counted"
_SETTING_COUNT = 6
_LOGITS = "Tensor query, Tensor key, Tensor? mask, Tensor? sink"
_ATTENDED = "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? sink"
_RESULT = "Tensor output, Tensor beta, Tensor logmass, Tensor maximum"
_STATISTICS = "Tensor maximum, Tensor mass, Tensor moment, Tensor count"

NO_COLUMNS = torch.zeros(1, 0, dtype=torch.float64)  # the parameters of GIVEN and HARD


# How the kernels read tensors.


def _readable(tensor: Tensor) -> Tensor:
    """The tensor with adjacent columns."""
    return tensor if tensor.stride(3) == 1 or tensor.shape[3] < 2 else tensor.contiguous()


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sink: Tensor | None
) -> tuple[Tensor | None, ...]:
    return _readable(query), _readable(key), _readable(value), mask, _sink(query, sink)


def _sink(query: Tensor, sink: Tensor | None) -> Tensor | None:
    """The sink in the dtype of statistics."""
    return None if sink is None else sink.to(_row_dtype(query)).contiguous()


def _row_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _upstream(
    gradient: Tensor, of_logmass: Tensor | None, output: Tensor, *rows: Tensor
) -> tuple[Tensor | None, ...]:
    wide = map(_contiguous, (of_logmass, *rows))
    return _readable(gradient), next(wide), _readable(output), *wide


# Attention.

_LIBRARY.define(
    f"attention({_ATTENDED}, Tensor? beta, Tensor parameters, int form, bool detach_temperature, "
    f"{_SETTINGS}) -> (Tensor output, {_STATISTICS}, Tensor beta_out, Tensor logmass)"
)
_LIBRARY.define(
    f"attention_row_gradient(Tensor gradient, Tensor? of_logmass, {_ATTENDED}, {_RESULT}, "
    f"{_SETTINGS}) -> (Tensor by_beta, Tensor mean, Tensor variance)"
)
_LIBRARY.define(
    f"attention_backward(Tensor gradient, Tensor? of_logmass, {_ATTENDED}, {_RESULT}, "
    "Tensor? a0, Tensor? c0, Tensor? a1, Tensor? c1, bool mask_gradient, bool beta_gradient, "
    f"{_SETTINGS}) -> "
    "(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor sink, Tensor beta)"
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
    results = _attention_fake(query, key, value)
    policy = form, parameters.contiguous(), _contiguous(beta)
    kernels.forward(TORCH, _inputs(query, key, value, mask, sink), settings, policy, results)
    return results


def output_now(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    parameters: Tensor,
    form: int,
    settings: tuple[float, ...],
) -> Tensor:
    """Run the kernel on tensors that hold numbers, for the output alone."""
    output = query.new_empty(*query.shape[:3], value.shape[3])
    policy = form, parameters.contiguous(), None
    results = output, None, None, None, None, None, None
    kernels.forward(TORCH, _inputs(query, key, value, mask, sink), settings, policy, results)
    return output


def _attention_fake(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, ...]:
    output = query.new_empty(*query.shape[:3], value.shape[3])
    maximum, mass, moment, count = _statistics_fake(query)
    return output, maximum, mass, moment, count, torch.empty_like(mass), torch.empty_like(mass)


def _row_gradient(*arguments: Any) -> tuple[Tensor, ...]:
    gradient, of_logmass, *inputs = arguments[:7]
    upstream = _upstream(gradient, of_logmass, *arguments[7:11])
    results = _statistics_fake(inputs[0])[:3]
    kernels.row_gradient(TORCH, _inputs(*inputs), arguments[11:], upstream, results)
    return results


def _row_gradient_fake(gradient: Tensor, _: object, query: Tensor, *rest: Any) -> Any:
    return _statistics_fake(query)[:3]


def _attention_backward(*arguments: Any) -> tuple[Tensor, ...]:
    gradient, of_logmass, *inputs = arguments[:7]
    query, key, value, mask, sink = inputs
    upstream = _upstream(gradient, of_logmass, *arguments[7:11])
    terms = tuple(map(_contiguous, arguments[11:15]))
    mask_gradient, beta_gradient = arguments[15:17]
    results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in (query, key, value)]
    wide = _row_dtype(query)
    by_mask = torch.empty(*query.shape[:3], key.shape[2], dtype=wide) if mask_gradient else None
    by_sink = None if sink is None else torch.empty(sink.shape, dtype=wide)
    by_beta = torch.empty(query.shape[:3], dtype=wide) if beta_gradient else None
    others = by_mask, by_sink, by_beta
    kernels.backward(TORCH, _inputs(*inputs), arguments[17:], upstream, terms, (*results, *others))
    types = wide if mask is None else mask.dtype, None if sink is None else sink.dtype, wide
    given = zip(others, types, strict=True)
    made = (query.new_empty(0) if each is None else each.to(dtype) for each, dtype in given)
    return *results, *made


def _attention_backward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    query, key, value, mask, sink = arguments[2:7]
    wants_mask, wants_beta = arguments[-_SETTING_COUNT - 2 : -_SETTING_COUNT]
    by_mask = (query if mask is None else mask).new_empty(
        (*query.shape[:3], key.shape[2]) if wants_mask else 0
    )
    by_sink = query.new_empty(0) if sink is None else sink.new_empty(sink.shape)
    by_beta = _statistics_fake(query)[0] if wants_beta else query.new_empty(0)
    results = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return *results, by_mask, by_sink, by_beta


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, mask, sink, _, parameters, *ctx.settings = inputs
    result, *rows, logmass = output
    ctx.save_for_backward(query, key, value, mask, sink, result, *rows, logmass, parameters)
    ctx.mark_non_differentiable(*rows)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, *row_gradients: Any) -> tuple[Any, ...]:
    form, detach_temperature, *settings = ctx.settings
    *inputs, output, maximum, mass, moment, count, beta, logmass, parameters = ctx.saved_tensors
    of_logmass = row_gradients[-1]
    if gradient is None:
        gradient = torch.zeros_like(output)
    first = (gradient, of_logmass, *inputs, output, beta, logmass, maximum)
    wants_mask, wants_sink, wants_beta, wants_parameters = ctx.needs_input_grad[3:7]
    moves = not detach_temperature and form not in (Form.GIVEN, Form.HARD)
    fixed = form in (Form.CONSTANT, Form.LENGTH)  # beta does not depend on the logits
    statistics = RowStatistics(maximum, mass, moment, count)
    apart = logmass if inputs[4] is not None and not settings[-1] else None
    through = partial(through_policy, Form(form), parameters, statistics, beta, logmass=apart)
    terms, by_parameters = Terms(), None
    if moves and not fixed:
        terms, by_parameters = through(*attention_row_gradient(*first, *settings))
    wants_beta = wants_beta or (moves and fixed and wants_parameters)
    by_query, by_key, by_value, by_mask, by_sink, by_beta = attention_backward(
        *first, *terms, wants_mask, wants_beta, *settings
    )
    if wants_beta and moves:
        # Only other forms read mean and variance.
        by_parameters = through(by_beta, by_beta, by_beta)[1]
    by_mask, by_sink = by_mask if wants_mask else None, by_sink if wants_sink else None
    by_beta = torch.where(count == 0, 0.0, by_beta) if form == Form.GIVEN and wants_beta else None
    nothing = [None] * len(ctx.settings)
    return by_query, by_key, by_value, by_mask, by_sink, by_beta, by_parameters, *nothing


# Statistics.

_LIBRARY.define(f"attention_statistics({_LOGITS}, {_SETTINGS}) -> ({_STATISTICS})")
_LIBRARY.define(
    "attention_statistics_backward(Tensor by_maximum, Tensor by_mass, Tensor by_moment, "
    f"{_LOGITS}, {_STATISTICS}, bool mask_gradient, {_SETTINGS}) "
    "-> (Tensor query, Tensor key, Tensor mask, Tensor sink)"
)


def statistics_now(
    query: Tensor, key: Tensor, mask: Tensor | None, sink: Tensor | None, *settings: float
) -> tuple[Tensor, ...]:
    """Run the kernel on tensors that hold numbers."""
    results = _statistics_fake(query)
    inputs = _readable(query), _readable(key), mask, _sink(query, sink)
    kernels.statistics(TORCH, inputs, settings, results)
    return results


def _statistics_fake(query: Tensor, *_: object) -> tuple[Tensor, ...]:
    entries = [query.new_empty(query.shape[:3], dtype=_row_dtype(query)) for _ in range(3)]
    return *entries, query.new_empty(query.shape[:3], dtype=torch.int64)


def _statistics_backward(*arguments: Any) -> tuple[Tensor, ...]:
    gradients, (query, key, mask, sink), rows = arguments[:3], arguments[3:7], arguments[7:11]
    mask_gradient, *settings = arguments[11:]
    statistics = RowStatistics(*rows)
    terms, to_maximum = through_statistics(statistics, *gradients)
    tensors = (query, key, _no_values(key), mask, sink)
    beta, logmass = torch.ones_like(statistics.mass), torch.log(statistics.mass)
    if to_maximum.any():
        # At beta = inf the weights are those of the largest logits, evenly where these tie.
        *_, beta, logmass = attention_now(*tensors, None, NO_COLUMNS, Form.HARD, True, *settings)
        terms = terms._replace(a1=to_maximum, c1=torch.zeros_like(to_maximum))
    rest = (beta, logmass, statistics.maximum, *terms, mask_gradient, False, *settings)
    return _through_logits(_attention_backward, tensors, rest)


def _through_logits(
    backward: Callable[..., Any], tensors: tuple[Any, ...], rest: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """Gradients by query, key, mask and sink of something that depends on the logits alone."""
    nothing = tensors[0].new_zeros(*tensors[0].shape[:3], 1)
    by_query, by_key, _, by_mask, by_sink, _ = backward(nothing, None, *tensors, nothing, *rest)
    return by_query, by_key, by_mask, by_sink


def _no_values(key: Tensor) -> Tensor:
    """Values of width one that cost no memory, for kernels that want some."""
    return key.new_zeros(1, 1, 1, 1).expand(*key.shape[:3], 1)


def _statistics_backward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    query, key, mask, sink = arguments[3:7]
    tensors = (query, key, _no_values(key), mask, sink)
    wanted = arguments[-_SETTING_COUNT - 1], False
    return _through_logits(
        _attention_backward_fake, tensors, (*wanted, *arguments[-_SETTING_COUNT:])
    )


def _keep_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, mask, sink, *ctx.settings = inputs
    ctx.save_for_backward(query, key, mask, sink, *output)
    ctx.mark_non_differentiable(output[3])


def _backward_of_statistics(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    by_logits = attention_statistics_backward(
        *gradients[:3], *ctx.saved_tensors, ctx.needs_input_grad[2], *ctx.settings
    )
    return *_wanted(ctx, by_logits), *([None] * len(ctx.settings))


def _wanted(ctx: Any, by_logits: tuple[Tensor, ...]) -> list[Tensor | None]:
    """Gradients by query, key, mask and sink; None where an input needs none."""
    wants = ctx.needs_input_grad[:4]
    return [gradient if want else None for gradient, want in zip(by_logits, wants, strict=True)]


# Entropy and variance at a temperature.

_LIBRARY.define(
    f"attention_tempered({_LOGITS}, Tensor beta, {_SETTINGS}) "
    "-> (Tensor entropy, Tensor variance, Tensor mean, Tensor maximum, Tensor logmass)"
)


def _tempered(*arguments: Any) -> tuple[Tensor, ...]:
    query, key, mask, sink, beta, *settings = arguments
    tensors = (query, key, _no_values(key), mask, sink)
    output, maximum, _, _, count, _, logmass = attention_now(
        *tensors, beta, NO_COLUMNS, Form.GIVEN, True, *settings
    )
    _, mean, variance = _row_gradient(
        output, None, *tensors, output, beta, logmass, maximum, *settings
    )
    entropy = torch.where(count == 0, 0.0, logmass - beta * (mean - maximum))
    return entropy, variance, mean, maximum, logmass


def _tempered_fake(query: Tensor, *_: object) -> tuple[Tensor, ...]:
    rows = _statistics_fake(query)[:3]
    return *rows, torch.empty_like(rows[0]), torch.empty_like(rows[0])


def _keep_tempered(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, mask, sink, beta, *ctx.settings = inputs
    ctx.save_for_backward(query, key, mask, sink, beta, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward_of_tempered(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    query, key, mask, sink, beta, variance, mean, maximum, logmass = ctx.saved_tensors
    # d H / d e_j = -beta^2 p_j (e_j - E[e])
    slope = torch.where(maximum == -torch.inf, 0.0, -gradient * beta * beta)
    shift = torch.where(maximum == -torch.inf, 0.0, mean - maximum)
    terms = Terms(a1=-slope * shift, c1=slope)
    tensors = (query, key, _no_values(key), mask, sink)
    rest = (beta, logmass, maximum, *terms, ctx.needs_input_grad[2], False, *ctx.settings)
    by_logits = _wanted(ctx, _through_logits(attention_backward, tensors, rest))
    return *by_logits, -gradient * beta * variance, *([None] * len(ctx.settings))


# Registration.


def _no_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise NotImplementedError(
        "sharpmax.attention: the CPU kernels have no second derivative; impl='reference' has"
    )


_OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "attention": (attention_now, _attention_fake),
    "attention_row_gradient": (_row_gradient, _row_gradient_fake),
    "attention_backward": (_attention_backward, _attention_backward_fake),
    "attention_statistics": (statistics_now, _statistics_fake),
    "attention_statistics_backward": (_statistics_backward, _statistics_backward_fake),
    "attention_tempered": (_tempered, _tempered_fake),
}
_GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "attention": (_backward, _keep_for_backward),
    "attention_statistics": (_backward_of_statistics, _keep_statistics),
    "attention_tempered": (_backward_of_tempered, _keep_tempered),
}
for _name, (_kernel, _fake) in _OPERATORS.items():
    _LIBRARY.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"sharpmax::{_name}", _fake, lib=_LIBRARY)
    _gradient, _keep = _GRADIENTS.get(_name, (_no_second_derivative, None))
    torch.library.register_autograd(
        f"sharpmax::{_name}", _gradient, setup_context=_keep, lib=_LIBRARY
    )

attention = torch.ops.sharpmax.attention.default
attention_row_gradient = torch.ops.sharpmax.attention_row_gradient.default
attention_backward = torch.ops.sharpmax.attention_backward.default
attention_statistics = torch.ops.sharpmax.attention_statistics.default
attention_statistics_backward = torch.ops.sharpmax.attention_statistics_backward.default
attention_tempered = torch.ops.sharpmax.attention_tempered.default

for _name, _folded, _fixed in (
    ("attention", {0, 1, 2, 3, 5}, {4, 6}),
    ("attention_statistics", {0, 1, 2}, {3}),
    ("attention_tempered", {0, 1, 2, 4}, {3}),
):
    _operator = getattr(torch.ops.sharpmax, _name).default
    torch.library.register_vmap(
        f"sharpmax::{_name}", batched(_operator, _folded, _fixed), lib=_LIBRARY
    )
