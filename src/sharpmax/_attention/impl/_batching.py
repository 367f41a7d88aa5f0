"""Batch operators under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def batched(operator: Callable[..., tuple[Tensor, ...]], folded: set[int], fixed: set[int]) -> Any:
    """Make a batching rule that folds the mapped axis into the batch.

    Arguments numbered in `folded` have a batch. Those in `fixed` (a sink, the parameters of a
    policy) hold for all batches and must not be mapped over.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        size, arguments = info.batch_size, list(given)
        if any(in_dims[k] is not None for k in fixed):
            raise NotImplementedError(
                "sharpmax.attention: vmap over a sink or the parameters of a policy is not "
                "supported; map over query, key, value and attn_mask"
            )
        for k in folded:
            if (tensor := arguments[k]) is None:
                continue
            if in_dims[k] is None:
                tensor = tensor.unsqueeze(0).expand(size, *tensor.shape)
            else:
                tensor = tensor.movedim(in_dims[k], 0)
            arguments[k] = tensor.flatten(0, 1)
        results = operator(*arguments)
        return tuple(result.unflatten(0, (size, -1)) for result in results), (0,) * len(results)

    return rule
