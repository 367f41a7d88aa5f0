"""Translate the arguments of flex_attention, as far as attention without a score_mod has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention

# What `flex_attention` calls after its checks, compiled or not.
FLEX: Any = torch.ops.higher_order.flex_attention
_PLAIN = flex_attention._identity


def mask_of(query: Tensor, key: Tensor, score_mod: Any, block_mask: tuple[Any, ...]) -> Tensor:
    """Return which keys a block mask shows, as booleans that broadcast over batch and heads."""
    if score_mod is not _PLAIN:
        raise NotImplementedError(
            "score_mod: expected None, got a function; sharpened attention cannot modify scores"
        )
    # Some versions of PyTorch put the two lengths first.
    first = 0 if isinstance(block_mask[0], Tensor) else 2
    some, some_at, whole, whole_at = block_mask[first : first + 4]
    *_, rows, columns, mask_mod = block_mask
    batch, heads = some.shape[:2]
    place = [
        torch.arange(count, device=query.device).view([-1 if at == axis else 1 for at in range(4)])
        for axis, count in enumerate((batch, heads, query.shape[2], key.shape[2]))
    ]
    across = (place[2].flatten() // rows, place[3].flatten() // columns)
    seen: Tensor = mask_mod(*place) & _blocks(some, some_at, *across)
    return seen if whole is None else seen | _blocks(whole, whole_at, *across)


def _blocks(count: Tensor, indices: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return for each query and key whether their block is among the first `count` indices."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    dense = torch.zeros_like(indices, dtype=torch.int32)
    dense = dense.scatter_add(-1, indices.long(), listed.to(torch.int32)) > 0
    return dense[..., row, :][..., column]
