"""What the ranks of the tests do: functions that another process can import."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import sharpmax
from sharpmax.distributed import _ranks
from sharpmax.policies import Exponential

POLICY = Exponential(1.0)


def attend_with(tensors: tuple[torch.Tensor, ...], options: dict[str, Any]) -> torch.Tensor:
    return sharpmax.distributed.attention(*tensors, **({"policy": POLICY} | options))


def cut_and_join(order: str, length: int) -> Any:
    whole = torch.arange(3.0 * length).reshape(1, length, 3)
    part = sharpmax.distributed.shard(whole, order=order).requires_grad_()
    held = sharpmax.distributed.positions(length, order=order)
    again = sharpmax.distributed.unshard(part, order=order)
    (again * (dist.get_rank() + 1.0)).sum().backward()
    return torch.equal(part, whole[:, held]), torch.equal(again, whole), part.grad


def attend_on_mesh(tensors: tuple[torch.Tensor, ...], sharded: bool) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    placements = [Shard(2) if sharded else Replicate(), Shard(2), Shard(2)]
    given = [
        distribute_tensor(x, mesh, [at]).requires_grad_()
        for x, at in zip(tensors, placements, strict=True)
    ]
    output = sharpmax.distributed.attention(*given, policy=POLICY, is_causal=True)
    assert output.placements == given[0].placements
    whole = output.full_tensor()
    output.square().sum().backward()
    through_mesh = sharpmax.distributed.attention(
        *(x.to_local() for x in given),
        policy=POLICY,
        is_causal=True,
        mesh=mesh,
        query_placement="sharded" if sharded else "replicated",
    )
    assert torch.equal(through_mesh, output.to_local())
    return whole.detach(), [x.grad.full_tensor() for x in given]


def messages(tensors: tuple[torch.Tensor, ...], options: dict[str, Any]) -> list[str]:
    names = ("all_reduce", "all_gather", "all_to_all_single", "batch_isend_irecv")
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            original = getattr(dist, name)

            def counting(*args: Any, _name: str = name, _original: Any = original, **rest: Any):
                found.append(_name)
                return _original(*args, **rest)

            patch.setattr(_ranks.dist, name, counting)
        attend_with(tensors, options)
    return found


def attend_forever(tensors: tuple[torch.Tensor, ...], method: str) -> None:
    placement = "replicated" if method == "tree" else "sharded"
    while True:
        attend_with(tensors, {"query_placement": placement, "method": method})


def by_parameter(
    query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, weights: Tensor, options: Any
) -> Tensor:
    function = sharpmax.distributed.attention if options else sharpmax.attention
    parameter = parameter.clone().requires_grad_()
    policy = Exponential(parameter)
    output = function(query, key, value, policy=policy, enable_gqa=True, is_causal=True, **options)
    return torch.autograd.grad((output * weights).sum(), parameter)[0]


def measure(arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return sharpmax.distributed.attention_statistics(*arguments, **options)


def attend_by_rank(
    tensors: dict[str, Tensor], options: dict[str, Any], upstream: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Output and statistics, or the gradients by all tensors for a gradient of the output."""
    if "value" not in tensors:
        rows = sharpmax.distributed.attention_statistics(**tensors, **options)
        return (torch.zeros(1, 1, 0), *rows)
    leaves = {
        name: x.requires_grad_(upstream is not None and x.is_floating_point())
        for name, x in tensors.items()
    }
    output, rows = sharpmax.distributed.attention(
        **leaves, **(options | {"return_statistics": True})
    )
    if upstream is None:
        return (output, *rows)
    wanted = {name: x for name, x in leaves.items() if x.requires_grad}
    found = torch.autograd.grad(output, list(wanted.values()), upstream, allow_unused=True)
    by_name = {
        name: torch.zeros_like(wanted[name]) if gradient is None else gradient
        for name, gradient in zip(wanted, found, strict=True)
    }
    return tuple(by_name.get(name) for name in tensors)
