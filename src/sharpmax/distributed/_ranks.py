"""The ranks of a process group, what they exchange, and how gradients pass through that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sharpmax._errors import SharpmaxError


class RankLostError(SharpmaxError, RuntimeError):
    """Say that ranks could not communicate, as when one of them has ended."""


class Ranks:
    """The ranks that share the keys of an attention."""

    def __init__(self, group: dist.ProcessGroup | None, mesh: DeviceMesh | None) -> None:
        if group is not None and mesh is not None:
            raise ValueError("group, mesh: expected one of the two, got both")
        if not dist.is_initialized():
            raise RuntimeError(
                "sharpmax.distributed: expected a process group, found none; call "
                "torch.distributed.init_process_group first"
            )
        if mesh is not None and mesh.ndim != 1:
            raise ValueError(
                f"mesh: expected one axis, got {mesh.ndim}; pass the axis that shards the keys, "
                "mesh['name']"
            )
        self.group: Any = mesh.get_group() if mesh is not None else group or dist.group.WORLD
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError("group: expected one that this rank belongs to, got another")

    def largest(self, tensor: Tensor) -> Tensor:
        """Return the largest entry over ranks, for each entry."""
        return self._reduced(tensor, dist.ReduceOp.MAX, "an all-reduce of maxima")

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks."""
        return self._reduced(tensor, dist.ReduceOp.SUM, "an all-reduce of sums")

    def _reduced(self, tensor: Tensor, operation: Any, what: str) -> Tensor:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._communicating(what):
            dist.all_reduce(result, operation, group=self.group)
        return result

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have one shape."""
        tensor = tensor.detach().contiguous()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._communicating("an all-gather"):
            dist.all_gather(found, tensor, group=self.group)
        return found

    def gathered_objects(self, value: object) -> list[Any]:
        """Return the objects of all ranks."""
        found: list[Any] = [None] * self.size
        with self._communicating("an all-gather of settings"):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def exchanged(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send one flat part to each rank, and return what each rank sent, of the given sizes."""
        sent = torch.cat([part.detach().reshape(-1) for part in parts])
        received = sent.new_empty(sum(sizes))
        with self._communicating("an all-to-all"):
            dist.all_to_all_single(
                received, sent, list(sizes), [part.numel() for part in parts], group=self.group
            )
        return list(received.split(list(sizes)))

    def passed_on(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Passing:
        """Begin to send to the next rank, and to receive from the one before.

        Args:
            pairs: what to send, and where to put what comes; contiguous.
        """
        after, before = ((self.rank + step) % self.size for step in (1, -1))
        operations = []
        for sent, received in pairs:
            for function, tensor, peer in (
                (dist.isend, sent, after),
                (dist.irecv, received, before),
            ):
                if tensor.numel():  # both sides know how large a part is
                    there = dist.get_global_rank(self.group, peer)
                    operations.append(dist.P2POp(function, tensor, there, self.group))
        with self._communicating("passing keys on"):
            return Passing(self, dist.batch_isend_irecv(operations) if operations else [])

    @contextmanager
    def _communicating(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # every error of torch.distributed is one
            raise RankLostError(
                f"sharpmax.distributed: {what} among {self.size} ranks failed on rank "
                f"{self.rank}. Another rank has ended or does not answer: look at its output "
                f"first. PyTorch says: {error}"
            ) from error

    # With gradients.

    def used_by_all(self, tensor: Tensor) -> Tensor:
        """Return a tensor that all ranks have; its gradient is the sum over ranks."""
        result: Tensor = applied(_UsedByAll, tensor, self)
        return result

    def summed(self, tensor: Tensor, *made_of: Tensor | None) -> Tensor:
        """Return the sum over ranks, from which all ranks compute the same.

        Args:
            tensor: the summand of this rank.
            made_of: what it depends on, on some rank. A rank whose keys are all hidden does not
                depend on it, and yet has to join the others in the backward pass.
        """
        result: Tensor = applied(_Summed, tensor, self, *made_of)
        return result


class Passing:
    """Messages to the next rank that are under way."""

    def __init__(self, ranks: Ranks, works: list[Any]) -> None:
        self._ranks, self._works = ranks, works

    def wait(self) -> None:
        """Wait until everything has been sent and received."""
        with self._ranks._communicating("passing keys on"):
            for work in self._works:
                work.wait()


def applied(function: Any, *arguments: Any) -> Any:
    """Apply a function that has its own backward pass."""
    return function.apply(*arguments)


class _UsedByAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        return ctx.ranks.total(gradient.to(wide)).to(gradient.dtype), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks, *made_of: Tensor | None) -> Tensor:
        keep_shapes(ctx, made_of)
        return ranks.total(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient, None, *no_gradients(ctx)


def keep_shapes(ctx: Any, tensors: Sequence[Tensor | None]) -> None:
    """Remember what `no_gradients` needs of the last inputs of a function."""
    ctx.nothing = [None if x is None else x.detach().new_zeros(()).expand(x.shape) for x in tensors]


def no_gradients(ctx: Any) -> list[Tensor | None]:
    """Return gradients of zero, which unlike None make the engine go on to what came before."""
    wanted = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(ctx.nothing) :]
    return [zero if want else None for zero, want in zip(ctx.nothing, wanted, strict=True)]
