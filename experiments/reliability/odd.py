"""Tensors and numbers as people have them: the same problem in another disguise."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sharpmax
from experiments.reliability.cases import Case

__all__ = ["call_disguised"]


class Marked(torch.Tensor):
    """A tensor that is told apart by its type."""


def call_disguised(case: Case, **settings: Any) -> tuple[Tensor, sharpmax.RowStatistics]:
    """Call `sharpmax.attention` on a case in disguise: output and statistics, of its own shape.

    The disguise is drawn by the number of the case: the same for every implementation.
    """
    draw = random.Random(f"disguise-{case.seed}-{case.index}")
    tensors = {"query": case.query, "key": case.key, "value": case.value}
    options = dict(case.options)
    for disguise in draw.sample(_DISGUISES, draw.choice((1, 2))):
        disguise(draw, tensors, options)
    axes = draw.choice((_fewer_axes, _more_axes, _broadcast_heads, _unchanged))
    axes(case, tensors, options)
    grad = any(tensor.requires_grad for tensor in tensors.values())
    mode = torch.inference_mode if not grad and draw.random() < 0.3 else torch.no_grad
    context = torch.enable_grad() if grad else mode()
    with context:
        call: Any = sharpmax.attention
        output, statistics = call(*tensors.values(), return_statistics=True, **options, **settings)
    marked = any(type(tensor) is Marked for tensor in (*tensors.values(), *options.values()))
    if marked and type(output) is not Marked:
        raise TypeError(f"expected the subclass of an argument, got {type(output).__name__}")
    rows = case.query.shape[:3]
    plain = [x.detach().as_subclass(Tensor) for x in (output, *statistics)]
    return plain[0].reshape(*rows, case.value.shape[3]), sharpmax.RowStatistics(
        *(entry.reshape(rows) for entry in plain[1:])
    )


def _floating(tensors: dict[str, Tensor], options: dict[str, Any]) -> list[tuple[Any, str]]:
    """Where the floating tensors are: the dictionary and the name."""
    places = [(tensors, name) for name in tensors]
    return places + [
        (options, name)
        for name in ("attn_mask", "sink")
        if isinstance(options.get(name), Tensor) and options[name].is_floating_point()
    ]


def _negate(draw: random.Random, tensors: dict[str, Tensor], options: dict[str, Any]) -> None:
    """Keep the sign of a tensor apart from its numbers, as the imaginary part of a conjugate."""
    where, name = draw.choice(_floating(tensors, options))
    where[name] = torch._neg_view(-where[name])


def _mark(draw: random.Random, tensors: dict[str, Tensor], options: dict[str, Any]) -> None:
    where, name = draw.choice(_floating(tensors, options))
    where[name] = where[name].as_subclass(Marked)


def _share_leading(draw: random.Random, tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """Leave out the batch of one tensor if it is 1 for all: it broadcasts."""
    name = draw.choice(list(tensors))
    if tensors[name].shape[0] == 1:
        tensors[name] = tensors[name][0]


def _retype_numbers(draw: random.Random, _: dict[str, Tensor], options: dict[str, Any]) -> None:
    for name in ("scale", "softcap"):
        if options.get(name) is not None:
            options[name] = draw.choice((np.float32, np.float64, torch.tensor))(options[name])
    if options["window"] is not None:
        options["window"] = draw.choice((np.int64, torch.tensor, int))(options["window"])
    elif draw.random() < 0.5:
        options["window"] = draw.choice((sys.maxsize, 2**70, np.int64(2**62)))


def _require_gradients(draw: random.Random, tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = draw.choice(list(tensors))
    tensors[name] = tensors[name].detach().clone().requires_grad_()


_DISGUISES = (_negate, _mark, _share_leading, _retype_numbers, _require_gradients)


def _unchanged(case: Case, tensors: dict[str, Tensor], options: dict[str, Any]) -> None:
    pass


def _fewer_axes(case: Case, tensors: dict[str, Tensor], options: dict[str, Any]) -> None:
    """Leave out a batch of one, and a single head as well."""
    mask = options.get("attn_mask")
    if case.query.shape[0] != 1 or (mask is not None and mask.ndim > 2):
        return
    for name, tensor in tensors.items():
        single = tensor.reshape(tensor.shape[-3:])
        tensors[name] = single[0] if case.query.shape[1] == case.key.shape[1] == 1 else single


def _more_axes(_: Case, tensors: dict[str, Tensor], options: dict[str, Any]) -> None:
    """Put an axis before the batch."""
    for name, tensor in tensors.items():
        tensors[name] = tensor[None]
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4:
        options["attn_mask"] = mask[None]


def _broadcast_heads(case: Case, _: dict[str, Tensor], options: dict[str, Any]) -> None:
    """One key head serves all query heads, as in PyTorch, without `enable_gqa`."""
    if case.key.shape[1] == 1:
        options["enable_gqa"] = False
