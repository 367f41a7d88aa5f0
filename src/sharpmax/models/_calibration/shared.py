"""What calibrations of one model on the same data have in common, computed once for all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharpmax.models._calibration.objectives import Window
    from sharpmax.models._calibration.select import Losses


class Shared:
    """Keep what the original model computes, for several calibrations on the same data.

    Pass the same object to each call of `sharpmax.calibrate` with the same model and the same
    splits. It keeps the losses of the original model, and its predictions on ordinary text: those
    as the inputs of the output embeddings, because they take fewer numbers.
    """

    def __init__(self) -> None:
        self._of: tuple[Any, ...] | None = None
        self._losses: dict[Any, Losses] = {}
        self._inputs: dict[Any, Tensor] = {}

    def bind(self, objective: Any, *of: Any) -> None:
        """Remember the objective, model and data of the first calibration, and refuse others."""
        known, *first = self._of or (objective, *of)
        if known != objective or any(a is not b for a, b in zip(first, of, strict=True)):
            raise ValueError(
                "shared: expected the model, data, text and objective of the first calibration, "
                "got others; pass a new Shared()"
            )
        self._of = (objective, *of)

    def losses(self, key: Any, measure: Callable[[], Losses]) -> Losses:
        """Return the losses of the original model on the data with a key, measured once."""
        if key not in self._losses:
            self._losses[key] = measure()
        return self._losses[key]

    def logits(
        self,
        model: PreTrainedModel,
        window: Window,
        original: Callable[[], AbstractContextManager[None]],
        compute: Callable[[], Tensor],
    ) -> Tensor:
        """Return the logits of the original model for a window, without gradient.

        Args:
            model: the model.
            window: the text.
            original: a context in which the model computes what it did originally.
            compute: computes the logits that are wanted, always at the same places of a window.
        """
        # A model without output embeddings, or that changes their outputs, is computed again.
        untyped: Any = model
        head = untyped.get_output_embeddings()
        key = (window, model.dtype)
        with torch.no_grad():
            if key in self._inputs:
                found: Tensor = head(self._inputs[key])[0]
                return found
            seen: list[Tensor] = []
            hook = head and head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            try:
                with original():
                    logits = compute()
            finally:
                if hook is not None:
                    hook.remove()
            if len(seen) == 1 and torch.equal(head(seen[0])[0], logits):
                self._inputs[key] = seen[0]
            return logits
