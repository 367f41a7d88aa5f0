"""Register the Triton kernels as PyTorch operators, with fakes, gradients and batching rules.

They know neither policies nor sinks: `sharpmax._attention.impl.triton` adds a sink to the results.
An operator serves CUDA and ROCm tensors, and CPU tensors if Triton interprets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sharpmax._attention.impl._batching import batched
from sharpmax._attention.impl.triton.launch import (
    Settings,
    aligned,
    launch,
    negligible,
    score_bytes,
    splits_of,
    tile_of,
)
from sharpmax._attention.impl.triton.merging import at_top, merge_tempered, rescaling
from sharpmax._attention.temperature import through_statistics
from sharpmax._statistics import RowStatistics, merge_all

_LIBRARY: Any = torch.library.Library("sharpmax", "FRAGMENT")
SETTINGS = "float scale, float softcap, int left, int right, SymInt offset"
_ROWS = "Tensor maximum, Tensor mass, Tensor moment, Tensor square, Tensor count, Tensor ties"


# Statistics, at beta or without a temperature.

_LIBRARY.define(
    "triton_measure(Tensor query, Tensor key, Tensor? mask, Tensor? beta, Tensor? scores, "
    f"int bits, bool tied, {SETTINGS}) -> ({_ROWS}, Tensor kept)"
)
_LIBRARY.define(
    "triton_measure_backward(Tensor query, Tensor key, Tensor? mask, Tensor? beta, "
    "Tensor maximum, Tensor a, Tensor c, Tensor t, bool mask_gradient, "
    f"{SETTINGS}) -> (Tensor query, Tensor key, Tensor mask)"
)


def _measure(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    beta: Tensor | None,
    scores: Tensor | None,
    bits: int,
    tied: bool,
    *settings: Any,
) -> tuple[Tensor, ...]:
    """Measure; `bits` are those of each logit in `scores`, or of those to keep; 0 for neither."""
    query, key = aligned(query), aligned(key)
    rows = query.shape[:3]
    splits = splits_of(query, key, tile_of("measure", query, key, None))
    keep = scores is None and bits > 0
    kept = _kept(query, key, bits if keep else 0)
    # Apart in memory: results of an operator must not share any.
    maximum, mass, moment, square, ties = (
        query.new_zeros(splits, *rows, dtype=torch.float32) for _ in range(5)
    )
    count = query.new_zeros(splits, *rows, dtype=torch.int32)
    tensors = {
        "query": query,
        "key": key,
        "mask": mask,
        "beta": beta,
        "scores": kept if keep else scores,
        "maximum": maximum,
        "mass": mass,
        "moment": moment,
        "square": square,
        "count": count,
        "ties": ties,
    }
    if maximum.numel() and key.shape[2]:
        launch(
            "measure",
            tensors,
            Settings(*settings),
            splits=splits,
            TEMPERED=beta is not None,
            TIED=tied,
            SCORES="write" if keep else "" if scores is None else "read",
            BITS=bits,
        ).run()
    else:
        maximum.fill_(-torch.inf)
    if splits == 1:
        return maximum[0], mass[0], moment[0], square[0], count[0].long(), ties[0], kept
    if beta is None:
        merged = merge_all(
            RowStatistics(*part) for part in zip(maximum, mass, moment, count.long(), strict=True)
        )
        top = merged.maximum
        return (*merged[:3], square[0], merged.count, at_top(maximum, ties, top), kept)
    top = maximum.amax(0)
    return (
        top,
        *merge_tempered(maximum, mass, moment, square, top, beta),
        count.sum(0),
        at_top(maximum, ties, top),
        kept,
    )


def _measure_fake(
    query: Tensor, key: Tensor, mask: Any, beta: Any, scores: Any, bits: int, *_: object
) -> tuple[Tensor, ...]:
    rows = query.shape[:3]
    maximum, mass, moment, square, ties = (
        query.new_empty(rows, dtype=torch.float32) for _ in range(5)
    )
    count = query.new_empty(rows, dtype=torch.int64)
    kept = _kept(query, key, bits if scores is None else 0)
    return maximum, mass, moment, square, count, ties, kept


def _kept(query: Tensor, key: Tensor, bits: int) -> Tensor:
    """Bytes for the logits of every row, if they are kept."""
    width = score_bytes(bits, key.shape[2], tile_of("measure", query, key, None)) if bits else 0
    return query.new_empty((*query.shape[:3], width), dtype=torch.uint8)


def _measure_backward(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    beta: Tensor | None,
    maximum: Tensor,
    a: Tensor,
    c: Tensor,
    t: Tensor,
    mask_gradient: bool,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.ones_like(maximum) if beta is None else beta
    numbers = (rows, maximum, a, c, t)
    of_query, of_key, _, _, of_mask = _gradients(
        query, key, None, mask, None, numbers, mask_gradient, Settings(*settings)
    )
    return of_query, of_key, of_mask


def _measure_backward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, mask, mask_gradient = *arguments[:3], arguments[8]
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        _mask_like(query, key, mask, mask_gradient, empty=True),
    )


def _keep_measure(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, mask, beta, _, _, _, *ctx.settings = inputs
    ctx.save_for_backward(query, key, mask, beta, *output[:6])
    held = () if beta is None else output[:1]
    ctx.mark_non_differentiable(*held, *output[3:])


def _backward_of_measure(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    query, key, mask, beta, maximum, mass, moment, square, count, ties = ctx.saved_tensors
    by_maximum, by_mass, by_moment = gradients[:3]
    by_beta = None
    if beta is None:
        statistics = RowStatistics(maximum, mass, moment, count)
        terms, to_maximum = through_statistics(statistics, by_maximum, by_mass, by_moment)
        a, c, t = terms.a0, terms.c0, to_maximum / ties.clamp(min=1.0)
    else:
        # The maximum is only where the sums are measured from, so that it is held.
        a, c, t = beta * by_mass + by_moment, beta * by_moment, torch.zeros_like(mass)
        by_beta = by_mass * moment + by_moment * square
    of_query, of_key, of_mask = triton_measure_backward(
        query, key, mask, beta, maximum, a, c, t, ctx.needs_input_grad[2], *ctx.settings
    )
    of_mask = of_mask if ctx.needs_input_grad[2] else None
    nothing = [None] * (3 + len(ctx.settings))
    return of_query, of_key, of_mask, by_beta, *nothing


# Attention at beta.

_LIBRARY.define(
    "triton_attend(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor beta, "
    f"Tensor? known, Tensor? scores, int bits, {SETTINGS}) "
    "-> (Tensor output, Tensor maximum, Tensor relative)"
)
_LIBRARY.define(
    "triton_attend_backward(Tensor gradient, Tensor of_relative, Tensor query, Tensor key, "
    "Tensor value, Tensor? mask, Tensor beta, Tensor output, Tensor maximum, Tensor relative, "
    f"bool mask_gradient, {SETTINGS}) "
    "-> (Tensor query, Tensor key, Tensor value, Tensor mask, Tensor beta)"
)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    beta: Tensor,
    known: Tensor | None,
    scores: Tensor | None,
    bits: int,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, (value, width) = aligned(query), aligned(key), (aligned(value), value.shape[3])
    rows = query.shape[:3]
    splits = splits_of(query, key, tile_of("attend", query, key, value))
    dtype = query.dtype if splits == 1 else torch.float32
    output = query.new_zeros(splits, *rows, value.shape[3], dtype=dtype)
    maximum = query.new_full((splits, *rows), -torch.inf, dtype=torch.float32)
    relative = torch.zeros_like(maximum)
    tensors = {
        "query": query,
        "key": key,
        "value": value,
        "mask": mask,
        "beta": beta.contiguous(),
        "scores": scores,
        "known": None if known is None else known.contiguous(),
        "output": output,
        "maximum": maximum,
        "relative": relative,
        "odd": query.new_empty(splits * maximum[0].numel(), dtype=torch.int32),
    }
    if maximum.numel() and key.shape[2]:
        first = launch(
            "attend",
            tensors,
            Settings(*settings),
            splits=splits,
            negligible=negligible(key.shape[2]),
            KNOWN=known is not None,
            SCORES="" if scores is None else "read",
            BITS=bits,
        )
        first.run().careful().run()
    output = output[..., :width].contiguous()
    if splits == 1:
        return output[0], maximum[0], relative[0]
    top = maximum.amax(0)
    _, factor = rescaling(maximum, top, beta)
    share = factor * torch.exp(relative)
    mass = share.sum(0)
    some = torch.where(mass == 0.0, 1.0, mass)
    parts = torch.where(share[..., None] == 0.0, 0.0, share[..., None] * output)
    joined = (parts.sum(0) / some[..., None]).to(query.dtype)
    return joined, torch.where(torch.isnan(mass), mass, top), torch.log(some)


def _attend_fake(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, ...]:
    rows = query.shape[:3]
    output = query.new_empty(*rows, value.shape[3])
    return output, *(query.new_empty(rows, dtype=torch.float32) for _ in range(2))


def _attend_backward(
    gradient: Tensor,
    of_relative: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    beta: Tensor,
    output: Tensor,
    maximum: Tensor,
    relative: Tensor,
    mask_gradient: bool,
    *settings: Any,
) -> tuple[Tensor, ...]:
    # No gradient goes through an output that is not finite.
    gradient = torch.where(torch.isfinite(output), gradient, 0.0)
    product = torch.where(gradient == 0.0, 0.0, gradient.float() * output.float())
    shift = product.sum(-1) - of_relative
    numbers = (beta.contiguous(), maximum, relative, shift, None)
    of_query, of_key, of_value, of_beta, of_mask = _gradients(
        query, key, value, mask, gradient, numbers, mask_gradient, Settings(*settings)
    )
    return of_query, of_key, of_value, of_mask, of_beta


def _attend_backward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    query, key, value, mask, beta = arguments[2:7]
    of_mask = _mask_like(query, key, mask, arguments[10], empty=True)
    of_beta = beta.new_empty(beta.shape)
    return *(x.new_empty(x.shape) for x in (query, key, value)), of_mask, of_beta


def _keep_attend(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, mask, beta, _, _, _, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, mask, beta, *output)
    ctx.mark_non_differentiable(output[1])


def _backward_of_attend(ctx: Any, gradient: Tensor, _: Any, of_relative: Tensor) -> tuple[Any, ...]:
    *of_tensors, of_mask, of_beta = triton_attend_backward(
        gradient, of_relative, *ctx.saved_tensors, ctx.needs_input_grad[3], *ctx.settings
    )
    nothing = [None] * (3 + len(ctx.settings))
    return *of_tensors, of_mask if ctx.needs_input_grad[3] else None, of_beta, *nothing


def _gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: Tensor | None,
    gradient: Tensor | None,
    numbers: tuple[Tensor | None, ...],
    mask_gradient: bool,
    settings: Settings,
) -> tuple[Tensor, ...]:
    """Run both kernels of the backward pass: gradients by query, key, value, beta and mask."""
    width, value_width = key.shape[3], 0 if value is None else value.shape[3]
    query, key = aligned(query), aligned(key)
    if value is not None and gradient is not None:
        value, gradient = aligned(value), aligned(gradient.contiguous())
    of_query = query.new_zeros(query.shape)
    of_key = key.new_zeros(key.shape)
    of_value = key.new_zeros(0, 0) if value is None else value.new_zeros(value.shape)
    of_beta = query.new_zeros(query.shape[:3], dtype=torch.float32)
    of_mask = _mask_like(query, key, mask, mask_gradient)
    given: dict[str, Tensor | None] = {
        "query": query,
        "key": key,
        "value": value,
        "mask": mask,
        "gradient": gradient,
    }
    given |= dict(zip(("beta", "maximum", "one", "two", "three"), numbers, strict=True))
    values = value is not None
    if of_beta.numel() and key.shape[2]:
        results: dict[str, Tensor | None] = {
            "of_query": of_query,
            "of_beta": of_beta,
            "of_mask": of_mask,
        }
        launch("by_query", given | results, settings, VALUES=values, BIAS=mask_gradient).run()
        results = {"of_key": of_key, "of_value": of_value}
        launch("by_key", given | results, settings, over_keys=True, VALUES=values).run()
    made = of_query[..., :width], of_key[..., :width], of_value[..., :value_width]
    return *(x.contiguous() for x in made), of_beta, of_mask


def _mask_like(
    query: Tensor, key: Tensor, mask: Tensor | None, wanted: bool, empty: bool = False
) -> Tensor:
    """A tensor for the gradient by the mask, as large as all logits; empty if unwanted."""
    shape = (*query.shape[:3], key.shape[2]) if wanted else (0,)
    like = query if mask is None else mask
    return like.new_empty(shape) if empty else like.new_zeros(shape)


# Registration.


def _no_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise NotImplementedError(
        "sharpmax.attention: the Triton kernels have no second derivative; impl='reference' has"
    )


_OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "triton_measure": (_measure, _measure_fake),
    "triton_measure_backward": (_measure_backward, _measure_backward_fake),
    "triton_attend": (_attend, _attend_fake),
    "triton_attend_backward": (_attend_backward, _attend_backward_fake),
}
_GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "triton_measure": (_backward_of_measure, _keep_measure),
    "triton_attend": (_backward_of_attend, _keep_attend),
}
for _name, (_kernel, _fake) in _OPERATORS.items():
    for _key in ("CUDA", "CPU"):
        _LIBRARY.impl(_name, _kernel, _key)
    torch.library.register_fake(f"sharpmax::{_name}", _fake, lib=_LIBRARY)
    _gradient, _keep = _GRADIENTS.get(_name, (_no_second_derivative, None))
    torch.library.register_autograd(
        f"sharpmax::{_name}", _gradient, setup_context=_keep, lib=_LIBRARY
    )

triton_measure = torch.ops.sharpmax.triton_measure.default
triton_measure_backward = torch.ops.sharpmax.triton_measure_backward.default
triton_attend = torch.ops.sharpmax.triton_attend.default
triton_attend_backward = torch.ops.sharpmax.triton_attend_backward.default

for _operator, _folded in (
    (triton_measure, {0, 1, 2, 3, 4}),
    (triton_attend, {0, 1, 2, 3, 4, 5, 6}),
):
    _rule = batched(_operator, _folded, set())
    torch.library.register_vmap(_operator, _rule, lib=_LIBRARY)
