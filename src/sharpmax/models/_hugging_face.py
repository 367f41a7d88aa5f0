"""The way into Hugging Face models, through transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sharpmax._extras import require
from sharpmax.models import _inspect
from sharpmax.models._attachment import ATTRIBUTE, Attachment
from sharpmax.models._config import MASKED, NAME, NAMES, SETTING, Hold
from sharpmax.models._way import Layer, Way

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def register() -> None:
    """Register our attention with transformers, which looks it up by name."""
    transformers = require("transformers", extra="models", what="a transformers model")
    if tuple(int(number) for number in transformers.__version__.split(".")[:2]) < (5, 21):
        # Earlier versions silently drop the soft cap of Gemma 2, and T5 does not use the interface.
        raise ImportError(
            "sharpmax.models: expected transformers 5.21 or later, got "
            f"{transformers.__version__}; run pip install 'sharpmax[models]'"
        )
    from sharpmax.models import _interface

    _interface.register()


class HuggingFace(Way):
    """A transformers model, whose configurations get our name while it has attachments."""

    of_transformers = True

    def __init__(self, model: PreTrainedModel) -> None:
        register()
        self.model = model
        self.layers = _inspect.attention_layers(model)
        self.notes = _inspect.own_temperatures(model)
        self.ranks = _inspect.tensor_parallel(model)
        self._held: list[Hold] = []
        self._attachments: Mapping[int, Attachment] = {}

    @property
    def identity(self) -> tuple[str, str]:
        config = self.model.config
        return getattr(config, "_name_or_path", "") or "", config.model_type

    def attach(
        self,
        attachments: Mapping[int, Attachment],
        adopt: Callable[[Layer | None], Attachment],
    ) -> None:
        self._attachments = attachments
        self._held = [Hold.take(config) for config in _inspect.configs(self.model)]
        for index, attachment in attachments.items():
            # Past nn.Module's bookkeeping: this is neither a parameter nor a submodule.
            self.layers[index].module.__dict__[ATTRIBUTE] = attachment
        self.model.set_attn_implementation(NAME)
        for hold in self._held:
            if hold.original == "eager" and hold.config.__dict__[SETTING] == NAME:
                hold.config.__dict__[SETTING] = MASKED

    def detach(self) -> None:
        for index, mine in self._attachments.items():
            attributes = self.layers[index].module.__dict__
            if attributes.get(ATTRIBUTE) is mine:
                del attributes[ATTRIBUTE]
        while self._held:
            self._held.pop().release()

    def taken(self) -> str | None:
        found = (layer.name for layer in self.layers if ATTRIBUTE in layer.module.__dict__)
        return next(found, None)

    def state(self, layer: Layer) -> tuple[str, str | None]:
        config = getattr(layer.module, "config", None)
        current = str(getattr(config, "_attn_implementation", "its own"))
        if layer.unreachable is not None:
            return current, layer.unreachable
        mine = self._attachments.get(layer.index)
        if mine is None or layer.module.__dict__.get(ATTRIBUTE) is not mine:
            return current, "restored"
        why = None if current in NAMES else f"its configuration says {current!r}, not {NAME!r}"
        return current, why
