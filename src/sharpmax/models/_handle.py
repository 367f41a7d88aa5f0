"""The handle of a model whose attention is sharpened: what it changes, tells and undoes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedModel

from sharpmax._attention.api import Implementation
from sharpmax._attention.problem import SinkRole
from sharpmax.models._config import Hold
from sharpmax.models._inspect import Kind, Layer, configs, own_temperatures
from sharpmax.models._interface import (
    ATTRIBUTE,
    MASKED,
    NAME,
    NAMES,
    STOCK,
    Attachment,
    Observer,
    Recorder,
)
from sharpmax.models._plan import CannotSharpenError
from sharpmax.models._rule import Rule
from sharpmax.policies import Policy

NOT_CALLED = "not called yet"
"""What the status calls the implementation of a layer that nothing has passed through."""


@dataclass(frozen=True)
class LayerStatus:
    """What really happens in an attention layer.

    Attributes:
        index: the index of the layer.
        name: the name of its module.
        kind: "global", "sliding", "chunked", "cross" or "encoder".
        heads: how many query heads it has, where that can be seen.
        policy: of the layer, or None where its temperature is left alone. Heads that were not
            chosen have parameters at which beta is 1.
        chosen: the heads that get the policy, where its parameters cannot say so; None: all.
        gain: the factor of each head's output, or None.
        implementation: what computes it: that of `sharpmax.attention` which served its first call,
            "not called yet", or what the model uses itself.
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
    """A model whose attention is sharpened, until `restore` or the end of a `with` block.

    Made by `sharpmax.sharpen`.

    Attributes:
        model: the model.
        layers: its attention layers.
        notes: what the model does itself to its temperature as inputs grow: read it before adding
            to that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: list[Layer],
        rules: dict[int, Rule],
        *,
        impl: Implementation = "auto",
        detach_temperature: bool = False,
        sink_role: SinkRole = "key",
        recorder: Recorder | Observer | None = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.notes = own_temperatures(model)
        size, rank = tensor_parallel(model)
        self._attachments = {
            index: Attachment(
                index,
                rule,
                heads=layers[index].heads,
                local=_local(rule, layers[index].heads, size, rank),
                impl=impl,
                detach_temperature=detach_temperature,
                sink_role=sink_role,
                recorder=recorder,
            )
            for index, rule in rules.items()
        }
        self._held: list[Hold] = []
        self._attach()

    def restore(self) -> None:
        """Undo the sharpening exactly. To do it again is harmless."""
        for layer in self.layers:
            mine = self._attachments.get(layer.index)
            if mine is not None and layer.module.__dict__.get(ATTRIBUTE) is mine:
                del layer.module.__dict__[ATTRIBUTE]
        while self._held:
            self._held.pop().release()

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The model as it was before, within a `with` block; it is sharpened again after it.

        What a cache holds stays: rows from before and after follow different rules.
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
        """A row for each attention layer: what really happens in it now."""
        return [self._row(layer) for layer in self.layers]

    def adopt(self, rules: Mapping[int, Rule]) -> None:
        """Give layers other rules, by index, from the next call on; the others keep theirs."""
        size, rank = tensor_parallel(self.model)
        for index, rule in rules.items():
            attachment = self._attachments[index]
            attachment.rule = rule
            attachment.local = _local(rule, self.layers[index].heads, size, rank)
            attachment.used = None

    def _row(self, layer: Layer) -> LayerStatus:
        config = getattr(layer.module, "config", None)
        current = str(getattr(config, "_attn_implementation", "its own"))
        rule, why_not = Rule(), layer.closed
        attachment: Attachment | None = layer.module.__dict__.get(ATTRIBUTE)
        if why_not is None and attachment is None:
            why_not = "restored"
        elif why_not is None and current not in NAMES:
            why_not = f"its configuration says {current!r}, not {NAME!r}"
        elif why_not is None and attachment is not None:
            rule = attachment.rule
            current = STOCK if rule.policy is None else attachment.used or NOT_CALLED
            why_not = "no policy for it" if rule.is_stock else None
        chosen = None if rule.chosen is None else tuple(rule.chosen.nonzero()[:, 0].tolist())
        gain = None if rule.gain is None else tuple(rule.gain.tolist())
        return LayerStatus(
            layer.index, layer.name, layer.kind, layer.heads, rule.policy, chosen, gain,
            current, why_not,
        )  # fmt: skip

    def _attach(self) -> None:
        """Put the rules on the modules and the door's name into the configurations."""
        name = type(self.model).__name__
        if taken := [layer.name for layer in self.layers if ATTRIBUTE in layer.module.__dict__]:
            raise CannotSharpenError(
                f"{name}: {taken[0]} is sharpened already; restore() that first, or give one "
                "mapping with all policies"
            )
        try:
            self._held = [Hold.take(config) for config in configs(self.model)]
            for index, attachment in self._attachments.items():
                # Past nn.Module's own bookkeeping: this is neither a parameter nor a part.
                self.layers[index].module.__dict__[ATTRIBUTE] = attachment
            self.model.set_attn_implementation(NAME)
            for hold in self._held:
                hold.rename("eager", {NAME: MASKED})
            self._verify()
        except BaseException:
            self.restore()
            raise

    def _verify(self) -> None:
        """See whether every layer finds the door, which transformers does not promise."""
        rows = [row for row in self.status() if row.index in self._attachments]
        missed = [row for row in rows if not self._reached(row.index)]
        reasons = "; ".join(f"{row.name}: {row.why_not}" for row in missed)
        if len(missed) == len(rows):
            raise CannotSharpenError(f"{type(self.model).__name__}: nothing was changed. {reasons}")
        if any(not self._attachments[row.index].rule.is_stock for row in missed):
            warnings.warn(f"not sharpened: {reasons}", stacklevel=5)

    def _reached(self, index: int) -> bool:
        config = getattr(self.layers[index].module, "config", None)
        return getattr(config, "_attn_implementation", None) in NAMES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        name, count = type(self.model).__name__, len(self.layers)
        sharp = sum(row.why_not is None for row in self.status())
        return f"Sharpened({name}: {sharp} of {count} attention layers)"


def tensor_parallel(model: PreTrainedModel) -> tuple[int, int]:
    """Over how many ranks the heads are spread, and which of them this is."""
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None:
        return 1, 0
    names = getattr(mesh, "mesh_dim_names", None) or ()
    if "tp" in names and len(names) > 1:
        mesh = mesh["tp"]
    elif names and "tp" not in names:
        return 1, 0
    return int(mesh.size()), int(mesh.get_local_rank())


def _local(rule: Rule, heads: int | None, size: int, rank: int) -> Rule | None:
    """The rule for the heads of a rank; None where a rank has them all."""
    if size == 1 or heads is None or heads % size:
        return None
    count = heads // size
    return rule.part(rank * count, (rank + 1) * count)
