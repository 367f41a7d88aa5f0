"""What makes weights of logits in training, through the same door as for any model."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import torch
from torch import nn
from transformers import PreTrainedModel

import sharpmax
from experiments.clrs_text.recipe import Recipe
from sharpmax import policies
from sharpmax.models import Sharpened
from sharpmax.models._inspect import attention_layers

__all__ = ["TrainedIn"]

# The scale of SSMax before training: above 1 for all rows of 8 tokens and more, so that it learns
# from all that matter.
_FIRST_SCALE = 0.5


class TrainedIn(nn.Module):
    """The attention that a model is trained with, within a `with` block.

    Plain softmax changes nothing. The paper's rule has no parameters. SSMax multiplies the logits
    of a head by s log n: `policies.LogLength` whose scale is a parameter here, which the policy
    reads anew at every step. Other than in its paper, the factor is never below 1.

    Args:
        model: What is trained.
        recipe: With which attention.
    """

    def __init__(self, model: PreTrainedModel, recipe: Recipe) -> None:
        super().__init__()
        self._model = [model]  # Not a part of this module.
        self._recipe = recipe
        self._sharpened: Sharpened | None = None
        self.scales = nn.ParameterList()
        if recipe.attention == "ssmax":
            self.scales.extend(
                nn.Parameter(torch.full((layer.heads or 1,), _FIRST_SCALE))
                for layer in attention_layers(model)
            )

    def policy(self) -> policies.Policy | Mapping[int | str, policies.Policy | None] | None:
        """What `sharpmax.sharpen` is told; None for plain softmax."""
        if self._recipe.attention == "paper":
            return policies.Paper(warn=False)
        if self._recipe.attention == "ssmax":
            return {layer: policies.LogLength(scale) for layer, scale in enumerate(self.scales)}
        return None

    def __enter__(self) -> TrainedIn:
        if (policy := self.policy()) is not None:
            self._sharpened = sharpmax.sharpen(
                self._model[0], policy, detach_temperature=not self._recipe.through_temperature
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sharpened is not None:
            self._sharpened.restore()
            self._sharpened = None
