"""The handle of a sharpened model: attach rules to its layers, show their status, undo them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from sharpmax.models._attachment import STOCK, Attachment
from sharpmax.models._model_families import Kind
from sharpmax.models._rule import Rule
from sharpmax.models._way import CannotSharpenError, Layer, Way
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
        self, way: Way, rules: Rules | None = None, default: Rule | None = None, **options: Any
    ) -> None:
        # Layers that are found later get the default; the options are those of `Attachment`.
        self.model = way.model
        self.notes = way.notes
        self._way, self._default, self._options = way, default or Rule(), options
        self._active = False
        self._attachments: dict[int, Attachment] = {}
        for layer in way.layers:
            if layer.unreachable is None:
                self._adopt(layer).rule = Rule()
        set_rules(self, rules or {})
        self.resume()

    def restore(self) -> None:
        """Undo the sharpening exactly. Calling it again has no effect."""
        self._way.detach()
        self._active = False

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
                self.resume()

    @property
    def active(self) -> bool:
        """Whether the model is sharpened now."""
        return self._active

    def status(self) -> list[LayerStatus]:
        """Return what each attention layer does now, one row per layer."""
        self._way.settle()
        return [self._row(layer) for layer in self._way.layers]

    def _row(self, layer: Layer) -> LayerStatus:
        current, why_not = self._way.state(layer)
        rule = Rule()
        if why_not is None:
            attachment = self._attachments[layer.index]
            rule = attachment.rule
            current = STOCK if rule.policy is None else attachment.used or NOT_CALLED
            why_not = "no policy" if rule.is_stock else None
        chosen = None if rule.chosen is None else tuple(rule.chosen.nonzero()[:, 0].tolist())
        gain = None if rule.gain is None else tuple(rule.gain.tolist())
        return LayerStatus(
            layer.index, layer.name, layer.kind, layer.heads, rule.policy, chosen, gain,
            current, why_not,
        )  # fmt: skip

    def _adopt(self, layer: Layer | None) -> Attachment:
        """Make the attachment of a layer; None: of layers that are not known yet."""
        if layer is None:
            return Attachment(-1, self._default, **self._options)
        made = Attachment(layer.index, self._default, layer.heads, **self._options)
        self._attachments[layer.index] = made
        return made

    def resume(self) -> None:
        """Sharpen the model again after `restore()`.

        Raises:
            CannotSharpenError: the model is sharpened.
        """
        taken = self._way.taken()
        if taken is not None:
            raise CannotSharpenError(
                f"{type(self.model).__name__}: {taken} is already sharpened; call restore() on "
                "the first handle, or pass one mapping with all policies"
            )
        try:
            self._active = True
            self._way.attach(self._attachments, self._adopt)
            self._verify()
        except BaseException:
            self.restore()
            raise

    def _verify(self) -> None:
        """Check that every layer will call us, which transformers does not guarantee."""
        missed = self._way.missed()
        reasons = "; ".join(f"{self._way.layers[i].name}: {why}" for i, why in missed.items())
        if missed and len(missed) == len(self._attachments):
            raise CannotSharpenError(f"{type(self.model).__name__}: nothing was changed. {reasons}")
        if any(not self._attachments[index].rule.is_stock for index in missed):
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
    size, rank = sharpened._way.ranks
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
