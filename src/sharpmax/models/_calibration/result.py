"""The calibration of a model: which heads get which policy and gain."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from torch import nn

from sharpmax._files import RefusedError, typed, typed_fields, versions
from sharpmax.models._open import open_model
from sharpmax.models._rule import Rule, changed
from sharpmax.models._saved import Saved
from sharpmax.models._way import Way
from sharpmax.policies import Policy


class OtherModelError(RefusedError):
    """Raised for a calibration that was made for another model."""


_HEADS = 10**6  # in a layer


class _Loss(TypedDict):
    before: float
    after: float
    change: float
    interval: tuple[float, float]


class _Candidate(TypedDict):
    heads: int
    gain: float
    certain: float | None
    rise: float
    harm: float | None


class _Selected(TypedDict):
    chosen: _Candidate | None
    candidates: list[_Candidate]


class _Settings(TypedDict):
    texts: dict[str, int]
    test_texts: dict[str, int]
    tasks: list[str]
    lengths: list[int]


class _Notes(TypedDict, total=False):
    """The notes that summaries and reports read."""

    family: str
    tolerance: float | None
    steps: int
    learning_rate: float
    shrink: float
    seed: int
    settings: _Settings
    select: _Selected
    test: dict[str, _Loss]


@dataclass(frozen=True)
class LayerCalibration:
    """What one layer gets.

    Attributes:
        index: position among the attention layers of the model.
        policy: policy whose parameters are numbers or have one entry per query head; None leaves
            the temperature unchanged.
        gain: factor of each query head's output, or None.
    """

    index: int
    policy: Policy | None = None
    gain: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.gain is not None:
            object.__setattr__(self, "gain", tuple(map(float, self.gain)))
            if not all(map(math.isfinite, self.gain)):
                raise ValueError(f"gain: expected finite factors, got {self.gain}")


@dataclass(frozen=True)
class Calibration(Saved):
    """Which heads of a model get which policy and gain, and how these were found.

    Layers that are not listed stay unchanged. A calibration without layers means that no change
    helped.

    Attributes:
        model_name: origin of the weights, from the configuration; may be empty.
        model_type: type in the configuration, such as "llama".
        head_counts: number of query heads of each attention layer; None if unknown.
        layers: what the changed layers get.
        lengths: lengths of the inputs of the fit.
        objective: what was minimised, such as "nats per token".
        before: objective on the test split without the calibration.
        after: objective on the same data with it.
        split_sizes: number of items per split.
        names: names of the attention layers, of a model that is not of transformers.
        versions: versions of the software that made it.
        notes: everything else worth keeping, as plain data.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from sharpmax.models import Calibration
        >>> from sharpmax.policies import Exponential
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> calibration = Calibration.of(model, {1: Exponential([1.5, 2.0])}, lengths=[64, 512])
        >>> with TemporaryDirectory() as folder:
        ...     path = calibration.save(folder + "/llama.json")
        ...     Calibration.load(path, model) == calibration
        True
    """

    FORMAT: ClassVar[str] = "sharpmax calibration 1"

    model_name: str
    model_type: str
    head_counts: tuple[int | None, ...]
    layers: tuple[LayerCalibration, ...] = ()
    lengths: tuple[int, ...] = ()
    objective: str = ""
    before: float | None = None
    after: float | None = None
    split_sizes: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("head_counts", "layers", "lengths", "names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        indices = [layer.index for layer in self.layers]
        if len(set(indices)) != len(indices):
            raise ValueError(f"layers: expected each layer once, got {indices}")
        if wrong := [index for index in indices if not 0 <= index < len(self.head_counts)]:
            last = len(self.head_counts) - 1
            raise ValueError(f"layers: expected indices from 0 to {last}, got {wrong}")
        if wrong := [count for count in self.head_counts if count and not 0 < count <= _HEADS]:
            raise ValueError(f"head_counts: expected numbers from 1 to {_HEADS:,}, got {wrong}")
        for layer in self.layers:
            if count := self.heads_in(layer):
                Rule.make(layer.policy, count=count, gain=layer.gain)  # checks the sizes
            changed(layer.policy, layer.gain, count)

    def heads_in(self, layer: LayerCalibration) -> int:
        """Count the heads of a layer; if their number is unknown, as far as its entries tell."""
        own = {} if layer.policy is None else layer.policy.per_head()
        return self.head_counts[layer.index] or max(map(len, (layer.gain or (), *own.values())))

    @staticmethod
    def of(
        model: nn.Module | Way,
        policies: Mapping[int, Policy | None],
        *,
        gains: Mapping[int, Sequence[float]] | None = None,
        example: Any = None,
        **facts: Any,
    ) -> Calibration:
        """Make a calibration of `model` from policies and gains by the index of the layer.

        Args:
            model: the model, for its name, type and numbers of heads.
            policies: policy per layer.
            gains: factors of the outputs of heads, per layer.
            example: arguments of the model, if it is not of transformers, as in `sharpmax.sharpen`.
            **facts: other attributes; versions are filled in.
        """
        way = model if isinstance(model, Way) else open_model(model, example)
        gains = gains or {}
        layers = tuple(
            LayerCalibration(index, policies.get(index), gains.get(index))  # type: ignore[arg-type]
            for index in sorted({*policies, *gains})
        )
        facts = {"versions": versions(("numpy", "torch", "transformers")), **facts}
        names = () if way.of_transformers else tuple(each.name for each in way.layers)
        heads = tuple(layer.heads for layer in way.layers)
        return Calibration(*way.identity, heads, layers=layers, names=names, **facts)

    def check(self, model: nn.Module | Way) -> None:
        """Check that this calibration fits `model`.

        Another name gives only a warning, since folders are moved and renamed.

        Raises:
            OtherModelError: says what was expected and what came.
        """
        way = model if isinstance(model, Way) else open_model(model)
        (name, kind), heads = way.identity, tuple(layer.heads for layer in way.layers)
        wrong, has = "", f"{type(way.model).__name__} has"
        if kind != self.model_type:
            wrong = f"a model of type {self.model_type!r} ({self.model_name or 'no name'}), "
            wrong += f"got {kind!r} ({name or 'no name'})"
        elif not way.complete:
            heads = ()  # its layers are not known yet
        elif len(heads) != len(self.head_counts):
            wrong = f"{len(self.head_counts)} attention layers, {has} {len(heads)}"
        for index, (expected, got) in enumerate(zip(self.head_counts, heads, strict=False)):
            if not wrong and None not in (expected, got) and expected != got:
                wrong = f"{expected} query heads in layer {index}, {has} {got}"
        for expects, layer in zip(self.names, way.layers, strict=False):
            if not wrong and expects != layer.name:
                wrong = f"{expects!r} as layer {layer.index}, {has} {layer.name!r}"
        if wrong:
            advice = "use the model that it was made for, or calibrate this one"
            raise OtherModelError(f"calibration: expected {wrong}; {advice}")
        if self.model_name and name and Path(self.model_name).name != Path(name).name:
            warnings.warn(
                f"the calibration was made for {self.model_name!r} and is used for {name!r}; "
                "unless these are the same weights, calibrate this model",
                stacklevel=3,
            )

    def summary(self) -> str:
        """Return a few lines: how many heads change, and the effect on the test split.

        Example:
            >>> from sharpmax.models import Calibration
            >>> print(Calibration("organisation/model", "llama", (4, 4)).summary())
            model: no change helped; leave this model unchanged
        """
        name = Path(self.model_name).name or self.model_type
        family = self.notes.get("family")
        name = f"{name}, {family}" if family else name
        if not self.layers:
            return f"{name}: no change helped; leave this model unchanged"
        heads = sum(
            changed(layer.policy, layer.gain, self.heads_in(layer)) for layer in self.layers
        )
        every = sum(count or 0 for count in self.head_counts)
        lines = [f"{name}: {heads:,} of {every:,} heads change"]
        test = self.notes.get("test", {})
        if self.before is not None and self.after is not None:
            what = self.objective or "objective"
            lines.append(f"{what}: {_change(self.before, self.after, test.get('objective'))}")
        if "text" in test:
            guard, tolerance = test["text"], self.notes.get("tolerance")
            line = f"loss on ordinary text: {_change(guard['before'], guard['after'], guard)}"
            lines.append(line if tolerance is None else f"{line}, tolerance {tolerance:g}")
        return "\n".join(lines)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> Calibration:
        """Read a file that `save` wrote, and check it against a model if one is given.

        Raises:
            DamagedFileError: the file is truncated, was edited, or has another format.
            OtherModelError: the calibration is for another model.
        """
        calibration = super().load(path)
        if model is not None:
            calibration.check(model)
        return calibration

    def to_peft(
        self, path: str | Path, model: nn.Module, tokenizer: Any = None, **options: Any
    ) -> Path:
        """Write this calibration as a PEFT IA³ adapter, which needs no sharpmax.

        PEFT loads the folder with `PeftModel.from_pretrained` and merges it with
        `merge_and_unload`. A temperature scales the outputs of the query projection, a gain the
        inputs of the output projection. Like every fold, the result is verified on the model.

        Args:
            path: folder for the adapter.
            model: the model, which names its projections; it is unchanged afterwards.
            tokenizer: as in `sharpmax.fold`.
            **options: text, inputs, partial and sink_role, as in `sharpmax.fold`.

        Returns:
            The path.

        Raises:
            CannotFoldError: something cannot be folded, or not into a projection.
        """
        # Folding is built on calibrations.
        from sharpmax.models._fold.fold import write_peft

        write_peft(model, self, path, tokenizer, **options)
        return Path(path)

    @staticmethod
    def from_peft(path: str | Path, model: nn.Module) -> Calibration:
        """Read an IA³ adapter whose factors are temperatures and gains of whole heads.

        Args:
            path: folder of the adapter.
            model: the model that it is for.

        Raises:
            CannotFoldError: the adapter is of another kind, or changes more than a calibration can.
            DamagedFileError: the folder holds no adapter, or a damaged one.
        """
        from sharpmax.models._fold.peft import read_adapter

        return read_adapter(Path(path), model)

    def to_dict(self) -> dict[str, Any]:
        layers = [
            {**vars(layer), "policy": None if layer.policy is None else layer.policy.to_dict()}
            for layer in self.layers
        ]
        plain: dict[str, Any] = json.loads(
            json.dumps({**vars(self), "layers": layers}, allow_nan=False)
        )
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Calibration:
        # Files of earlier versions have no names of layers.
        made: Calibration = typed_fields({"names": [], **data}, cls)
        typed(made.notes, _Notes, "notes")
        return made


def _change(before: float, after: float, figures: Mapping[str, Any] | None) -> str:
    """Return a loss before and after, and its change with the interval if that is known."""
    change = f"{after - before:+.4f}"
    if figures is not None:
        low, high = figures["interval"]
        change += f", 95% interval {low:+.4f} to {high:+.4f}"
    return f"{before:.4f} → {after:.4f} ({change})"
