"""The handle of a sharpened model: attach rules to its layers, show their status, undo them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from transformers import PreTrainedModel

from sharpmax.models import _inspect
from sharpmax.models._config import SETTING, Hold
from sharpmax.models._inspect import CannotSharpenError, Layer
from sharpmax.models._interface import ATTRIBUTE, MASKED, NAME, NAMES, STOCK, Attachment
from sharpmax.models._model_families import Kind
from sharpmax.models._rule import Rule
from sharpmax.policies import Policy

Rules = Mapping[int, Rule]  # by the index of the layer
NOT_CALLED = "not called yet"  # what the status shows as implementation until the first call


@dataclass(frozen=True)
class LayerStatus:
    """What an attention layer does now.

    Attributes:
        index: index of the layer.
        name: name of its module.
        kind: "global", "sliding", "chunked", "cross" or "encoder".
        heads: number of query heads, or None if unknown.
        policy: policy of the layer, or None if its temperature is unchanged. Heads that were not
            chosen have parameters for which beta is 1.
        chosen: the heads that get the policy, if its parameters cannot express that; None: all.
        gain: factor of each head's output, or None.
        implementation: the implementation of `sharpmax.attention` that served the first call, "not
            called yet", or the model's own attention.
        why_not: why the layer is not sharpened, or None.
    """

    index: int
    name: str
    kind: Kind
    heads: int | None
    policy: Policy | None
    chosen: tuple[int, ...] | None
    gain: tuple[float, ...] | None
    implementation: str
    why_not: str | None


class Sharpened:
    """A sharpened model, until `restore()` or the end of a `with` block.

    `sharpmax.sharpen` and `sharpmax.models.record` return it; do not construct it yourself.

    Attributes:
        model: the model.
        notes: how the model itself changes its temperature as inputs grow. Read these before you
            add a policy on top.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: list[Layer],
        rules: Rules | None = None,
        **options: Any,
    ) -> None:
        # The options are those of `Attachment`.
        self.model = model
        self.notes = _inspect.own_temperatures(model)
        self._layers = layers
        self._attachments = {
            layer.index: Attachment(layer.index, Rule(), layer.heads, **options)
            for layer in layers
            if layer.unreachable is None
        }
        set_rules(self, rules or {})
        self._held: list[Hold] = []
        self._attach()

    def restore(self) -> None:
        """Undo the sharpening exactly. Calling it again has no effect."""
        for index, mine in self._attachments.items():
            attributes = self._layers[index].module.__dict__
            if attributes.get(ATTRIBUTE) is mine:
                del attributes[ATTRIBUTE]
        while self._held:
            self._held.pop().release()

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Restore the original model within a `with` block, and sharpen it again afterwards.

        Caches keep what they hold: do not share one between the two states.
        """
        was_active = self.active
        self.restore()
        try:
            yield
        finally:
            if was_active:
                self._attach()

    @property
    def active(self) -> bool:
        """Whether the model is sharpened now."""
        return bool(self._held)

    def status(self) -> list[LayerStatus]:
        """Return what each attention layer does now, one row per layer."""
        return [self._row(layer) for layer in self._layers]

    def _row(self, layer: Layer) -> LayerStatus:
        current = _current(layer)
        rule, why_not = Rule(), layer.unreachable
        attachment: Attachment | None = layer.module.__dict__.get(ATTRIBUTE)
        if why_not is None and attachment is None:
            why_not = "restored"
        elif why_not is None and current not in NAMES:
            why_not = f"its configuration says {current!r}, not {NAME!r}"
        elif why_not is None and attachment is not None:
            rule = attachment.rule
            current = STOCK if rule.policy is None else attachment.used or NOT_CALLED
            why_not = "no policy" if rule.is_stock else None
        chosen = None if rule.chosen is None else tuple(rule.chosen.nonzero()[:, 0].tolist())
        gain = None if rule.gain is None else tuple(rule.gain.tolist())
        return LayerStatus(
            layer.index, layer.name, layer.kind, layer.heads, rule.policy, chosen, gain,
            current, why_not,
        )  # fmt: skip

    def _attach(self) -> None:
        """Put the rules on the modules and our name into the configurations."""
        taken = [layer.name for layer in self._layers if ATTRIBUTE in layer.module.__dict__]
        if taken:
            raise CannotSharpenError(
                f"{type(self.model).__name__}: {taken[0]} is already sharpened; call restore() on "
                "the first handle, or pass one mapping with all policies"
            )
        try:
            self._held = [Hold.take(config) for config in _inspect.configs(self.model)]
            for index, attachment in self._attachments.items():
                # Past nn.Module's bookkeeping: this is neither a parameter nor a submodule.
                self._layers[index].module.__dict__[ATTRIBUTE] = attachment
            self.model.set_attn_implementation(NAME)
            for hold in self._held:
                if hold.original == "eager" and hold.config.__dict__[SETTING] == NAME:
                    hold.config.__dict__[SETTING] = MASKED
            self._verify()
        except BaseException:
            self.restore()
            raise

    def _verify(self) -> None:
        """Check that every layer will call us, which transformers does not guarantee."""
        layers = [self._layers[index] for index in self._attachments]
        missed = [self._row(layer) for layer in layers if _current(layer) not in NAMES]
        reasons = "; ".join(f"{row.name}: {row.why_not}" for row in missed)
        if len(missed) == len(layers):
            raise CannotSharpenError(f"{type(self.model).__name__}: nothing was changed. {reasons}")
        if any(not self._attachments[row.index].rule.is_stock for row in missed):
            warnings.warn(f"not sharpened: {reasons}", stacklevel=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        rows = self.status()
        sharp = sum(row.why_not is None for row in rows)
        return f"Sharpened({type(self.model).__name__}: {sharp} of {len(rows)} attention layers)"


def set_rules(sharpened: Sharpened, rules: Rules) -> None:
    """Give layers other rules, by index, from the next call on; other layers keep theirs."""
    size, rank = _inspect.tensor_parallel(sharpened.model)
    for index, rule in rules.items():
        attachment = sharpened._attachments[index]
        attachment.rule, attachment.local, attachment.used = rule, None, None
        count, rest = divmod(attachment.heads or 1, size)
        if size > 1 and rest == 0:
            attachment.local = rule.between(rank * count, (rank + 1) * count)


@contextmanager
def neutral_rules(sharpened: Sharpened) -> Iterator[None]:
    """Compute what the original model computes within a block; unlike `disabled`, at no cost."""
    saved = {index: attachment.rule for index, attachment in sharpened._attachments.items()}
    set_rules(sharpened, dict.fromkeys(saved, Rule()))
    try:
        yield
    finally:
        set_rules(sharpened, saved)


def _current(layer: Layer) -> str:
    """Return the name of the attention in the configuration of a layer."""
    config = getattr(layer.module, "config", None)
    return str(getattr(config, "_attn_implementation", "its own"))
