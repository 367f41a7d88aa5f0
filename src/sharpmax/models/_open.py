"""Choose the way into a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from sharpmax.models._hugging_face import HuggingFace
from sharpmax.models._inspect import check_reachable, inner_models
from sharpmax.models._torch_module.way import TorchModule
from sharpmax.models._way import Way


def open_model(model: object, example: Any = None) -> Way:
    """Return the way into a model, at least one attention layer of which can be sharpened.

    A module that is or contains one transformers model goes through transformers' interface. Any
    other is called with the example, if there is one, to find its layers; and so is a model none of
    whose layers uses that interface, such as Falcon.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    inner = inner_models(model)
    if len(inner) == 1:
        way = HuggingFace(inner[0])
        if example is None or any(layer.unreachable is None for layer in way.layers):
            check_reachable(inner[0], way.layers)
            return way
    found = TorchModule(model)
    if example is not None:
        found.probe(example)
    return found
