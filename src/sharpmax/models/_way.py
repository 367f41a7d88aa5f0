"""The ways into a model: what every way to reach its attention layers provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sharpmax._files import RefusedError
from sharpmax.models._attachment import Attachment
from sharpmax.models._model_families import Kind
from sharpmax.models._share import Share, share_of


class CannotSharpenError(RefusedError):
    """Raised for a model, or a chosen layer, whose attention cannot be sharpened."""


@dataclass(frozen=True, eq=False)
class Layer:
    """An attention layer of a model, or one of the calls of attention that a module makes."""

    index: int  # among the attention layers: by the order of modules, or of the first calls
    name: str
    module: nn.Module
    kind: Kind
    heads: int | None  # query heads on all ranks, or None if the module does not say
    unreachable: str | None  # why the layer cannot be sharpened, or None


class Way(ABC):
    """A model, its attention layers, and how attachments get there."""

    model: Any
    layers: list[Layer]
    notes: tuple[str, ...] = ()  # how the model itself changes its temperature
    ranks: tuple[int, int] = (1, 0)  # how many share the heads, and which one this is
    of_transformers: bool = False  # whether it is a transformers model, which reads tokens
    complete: bool = True  # whether all layers are known

    @property
    @abstractmethod
    def identity(self) -> tuple[str, str]:
        """The origin of the weights, which may be empty, and the type of the model."""

    @abstractmethod
    def attach(
        self,
        attachments: Mapping[int, Attachment],
        adopt: Callable[[Layer | None], Attachment],
    ) -> None:
        """Give layers their attachments, by index.

        Layers that are found later are adopted; None serves those that compiled code meets first.
        """

    @abstractmethod
    def detach(self) -> None:
        """Undo `attach` exactly. Calling it again has no effect."""

    @abstractmethod
    def taken(self) -> str | None:
        """Return the name of a layer that has an attachment, or None."""

    @abstractmethod
    def state(self, layer: Layer) -> tuple[str, str | None]:
        """Return the attention that the model itself uses, and why a layer does not call us."""

    @property
    def dtype(self) -> str:
        """The precision of the weights."""
        found = (each.dtype for each in self.model.parameters() if each.is_floating_point())
        return str(next(found, torch.float32)).removeprefix("torch.")

    @cached_property
    def share(self) -> Share:
        """The ranks that share the inputs of this model."""
        return share_of(lockstep=self.spread)

    @property
    def spread(self) -> bool:
        """Whether weights are spread over ranks, so that all of them take part in each pass."""
        return any(map(is_spread, self.model.parameters()))

    def check_one_rank(self) -> None:
        """Raise `NotImplementedError` if the heads are distributed over ranks."""
        if self.ranks[0] > 1:
            raise NotImplementedError(
                f"model: expected all heads of {type(self.model).__name__} on one rank, got "
                f"{self.ranks[0]} ranks; load it without tensor parallelism, or with FSDP"
            )

    def settle(self) -> None:  # noqa: B027  (nothing to do by default)
        """Take note of layers that compiled code has met, if there are any."""

    def missed(self) -> dict[int, str]:
        """Return why layers that were attached will not call us, by index."""
        states = {layer.index: self.state(layer)[1] for layer in self.layers}
        reached = {layer.index for layer in self.layers if layer.unreachable is None}
        return {index: why for index, why in states.items() if why and index in reached}


def is_spread(weight: Tensor) -> bool:
    """Tell whether a weight is spread over ranks, by PyTorch's DTensor or by DeepSpeed."""
    return hasattr(weight, "device_mesh") or hasattr(weight, "ds_id")


@contextmanager
def evaluation_mode(model: nn.Module, *, frozen: bool = False) -> Iterator[None]:
    """Put a model into evaluation mode within a block, if `frozen` without gradients of weights."""
    training = [module for module in model.modules() if module.training]
    learning = [weight for weight in model.parameters() if frozen and weight.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    model.eval()
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)
        for module in training:
            module.training = True


@contextmanager
def in_precision(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Hold the weights of a model in another precision within a block; None keeps their own."""
    before = [(weight, weight.data) for weight in model.parameters() if weight.is_floating_point()]
    try:
        for weight, own in before if dtype is not None else ():
            weight.data = own.to(dtype)
        yield
    finally:
        for weight, own in before:
            weight.data = own
