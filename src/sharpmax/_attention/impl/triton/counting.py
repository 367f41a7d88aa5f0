"""Register the operator that counts the keys that each row sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sharpmax._attention.impl._batching import batched
from sharpmax._attention.impl.triton.launch import Settings, aligned, launch
from sharpmax._attention.impl.triton.operators import SETTINGS

_LIBRARY: Any = torch.library.Library("sharpmax", "FRAGMENT")
_LIBRARY.define(f"triton_count(Tensor query, Tensor key, Tensor? mask, {SETTINGS}) -> Tensor")


def _count(query: Tensor, key: Tensor, mask: Tensor | None, *settings: Any) -> Tensor:
    count = query.new_zeros(query.shape[:3], dtype=torch.int32)
    if count.numel() and key.shape[2]:
        tensors = {
            "query": aligned(query),
            "key": aligned(key),
            "mask": mask,
            "unsure": _may_be_infinite(query, key, mask, Settings(*settings)),
            "count": count,
        }
        launch("count_visible", tensors, Settings(*settings)).run()
    return count.long()


def _may_be_infinite(query: Tensor, key: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    """Whether a visible logit may be -inf, as far as the largest query and key tell: 0 or 1.

    The answer stays on the device, so that nothing waits for it.
    """
    if mask is not None and mask.dtype == torch.float64:  # a bias may be -inf in single precision
        return query.new_ones(1, dtype=torch.int32)
    if settings.softcap:
        return query.new_full((1,), not settings.softcap < 1e38, dtype=torch.int32)
    largest = [
        torch.linalg.vector_norm(x, torch.inf, dtype=torch.float32) if x.numel() else x.new_zeros(1)
        for x in (query, key)
    ]
    bound = abs(settings.scale) * key.shape[3] * largest[0] * largest[1]
    return (~(bound < 1e38)).to(torch.int32).reshape(1)  # also if it is NaN


def _count_fake(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.int64)


for _key in ("CUDA", "CPU"):
    _LIBRARY.impl("triton_count", _count, _key)
torch.library.register_fake("sharpmax::triton_count", _count_fake, lib=_LIBRARY)
triton_count = torch.ops.sharpmax.triton_count.default


def _count_batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
    (result,), (axis,) = batched(lambda *a: (triton_count(*a),), {0, 1, 2}, set())(
        info, in_dims, *arguments
    )
    return result, axis


torch.library.register_vmap(triton_count, _count_batched, lib=_LIBRARY)
