"""Take local tensors out of DTensors, and put results back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Shard


@dataclass(frozen=True)
class Unwrapped:
    """The local tensors of a call, and what is known from those that were DTensors.

    Attributes:
        tensors: query, key, value, mask and sink of this rank.
        group: the process group over which the keys are sharded.
        sharded: whether the queries are sharded as well.
        like: the query as a DTensor.
    """

    tensors: list[Tensor | None]
    group: dist.ProcessGroup
    sharded: bool
    like: DTensor

    def wrapped(self, result: Tensor) -> Tensor:
        """Return a result of the rows of the query as a DTensor with its placements."""
        shape = (*self.like.shape[:-1], *result.shape[self.like.ndim - 1 :])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            result,
            self.like.device_mesh,
            self.like.placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )


def unwrap(
    query: Any, key: Any, value: Any, mask: Any, sink: Any, chosen: object
) -> Unwrapped | None:
    """Return the local tensors, or None if the keys are not DTensors.

    Raises:
        TypeError, ValueError: for a mixture of DTensors and tensors, placements other than a length
            that is sharded over one axis of the mesh, or a group besides the mesh of the DTensors.
    """
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    kinds = {isinstance(x, DTensor) for x in given.values()}
    if kinds == {False}:
        return None
    if len(kinds) > 1:
        named = ", ".join(f"{name}: {type(x).__name__}" for name, x in given.items())
        raise TypeError(f"query, key, value: expected DTensors or tensors, got {named}")
    if chosen is not None:
        raise ValueError("group, mesh: expected None with DTensors, which have a mesh")
    mesh = key.device_mesh
    axes = [axis for axis, at in enumerate(key.placements) if _is_length(at, key)]
    if len(axes) != 1:
        raise ValueError(
            "key: expected a length that is sharded over one axis of the mesh, got "
            f"{key.placements}"
        )
    axis = axes[0]
    sharded = _is_length(query.placements[axis], query)
    for name, x in given.items():
        for number, at in enumerate(x.placements):
            allowed = at.is_replicate() or at.is_shard(0) or (number == axis and _is_length(at, x))
            if x.device_mesh != mesh or at.is_partial() or not allowed:
                raise ValueError(
                    f"{name}: expected the mesh of key, sharded on its length or its batch, got "
                    f"{x.placements}"
                )
        if name == "value" and x.placements != key.placements:
            raise ValueError(f"value: expected the placements of key, got {x.placements}")
    tensors = [
        x.to_local() if isinstance(x, DTensor) else x for x in (query, key, value, mask, sink)
    ]
    return Unwrapped(tensors, mesh.get_group(axis), sharded, query)


def _is_length(placement: Placement, tensor: Tensor) -> bool:
    return isinstance(placement, Shard) and placement.dim % tensor.ndim == tensor.ndim - 2
