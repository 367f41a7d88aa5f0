"""The calibration of a model: which heads get which policy, as a file."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sharpmax._files import DamagedFileError, RefusedError, read_sealed, versions, write_sealed
from sharpmax.models._inspect import Layer, attention_layers
from sharpmax.models._rule import changed
from sharpmax.policies import Policy

FORMAT = "sharpmax calibration 1"

_WHAT_TO_DO = "give the model that it was made for, or calibrate this one"


class OtherModelError(RefusedError):
    """A calibration was made for another model than the one at hand."""


@dataclass(frozen=True)
class LayerCalibration:
    """What a layer gets.

    Attributes:
        index: its place among the attention layers of the model.
        policy: with a number, or an entry a query head, for each parameter; None leaves the
            temperature alone.
        gain: a factor of each query head's output, or None.
    """

    index: int
    policy: Policy | None = None
    gain: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.gain is None:
            return
        gain = tuple(float(factor) for factor in self.gain)
        if not all(math.isfinite(factor) for factor in gain):
            raise ValueError(f"gain: expected finite factors, got {gain}")
        object.__setattr__(self, "gain", gain)


@dataclass(frozen=True)
class Calibration:
    """Which heads of which model get which policy, and how that was found.

    Layers that are not in it are left alone; without layers it says "leave this model alone".

    Attributes:
        model_name: where the weights came from, as the configuration names it; may be empty.
        model_type: of the configuration, such as "llama".
        head_counts: the number of query heads of each attention layer, in their order; None where
            it could not be seen.
        layers: what the layers get.
        lengths: the lengths of the inputs that it was fitted on.
        objective: what was made smaller, such as "nats per token".
        before: the objective on held-out data without it.
        after: the objective on the same data with it.
        split_sizes: how many examples each part of the data had.
        versions: of the software that made it.
        notes: whatever else is worth keeping, ready for JSON.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from sharpmax.models import Calibration
        >>> from sharpmax.policies import Exponential
        >>> model = LlamaForCausalLM(
        ...     LlamaConfig(
        ...         vocab_size=32,
        ...         hidden_size=16,
        ...         intermediate_size=16,
        ...         num_hidden_layers=2,
        ...         num_attention_heads=2,
        ...     )
        ... )
        >>> calibration = Calibration.of(model, {1: Exponential([1.5, 2.0])}, lengths=[64, 512])
        >>> with TemporaryDirectory() as folder:
        ...     path = calibration.save(folder + "/llama.json")
        ...     Calibration.load(path, model) == calibration
        True
    """

    model_name: str
    model_type: str
    head_counts: tuple[int | None, ...]
    layers: tuple[LayerCalibration, ...] = ()
    lengths: tuple[int, ...] = ()
    objective: str = ""
    before: float | None = None
    after: float | None = None
    split_sizes: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("head_counts", "layers", "lengths"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        indices = [layer.index for layer in self.layers]
        if len(set(indices)) != len(indices):
            raise ValueError(f"layers: expected each layer once, got {indices}")
        if wrong := [index for index in indices if not 0 <= index < len(self.head_counts)]:
            raise ValueError(
                f"layers: expected indices from 0 to {len(self.head_counts) - 1}, got {wrong}"
            )

    @staticmethod
    def of(
        model: PreTrainedModel,
        policies: Mapping[int, Policy | None],
        *,
        gains: Mapping[int, Sequence[float]] | None = None,
        **facts: Any,
    ) -> Calibration:
        """A calibration of `model`: policies and gains by the index of the layer.

        Args:
            model: the model; its name, type and counts are taken from it.
            policies: the policy of each layer.
            gains: factors of the outputs of heads.
            **facts: the other attributes; versions are filled in.
        """
        gains = gains or {}
        layers = tuple(
            LayerCalibration(index, policies.get(index), gains.get(index))  # type: ignore[arg-type]
            for index in sorted({*policies, *gains})
        )
        facts = {"versions": versions(("numpy", "torch", "transformers")), **facts}
        found = attention_layers(model)
        return Calibration(*_identity(model, found), layers=layers, **facts)

    def check(self, model: PreTrainedModel) -> None:
        """Make sure that this calibration is for `model`.

        The name of the model is not decisive, since folders are moved and renamed: another one
        gives a warning.

        Raises:
            OtherModelError: saying what was expected and what came.
        """
        name, kind, heads = _identity(model, attention_layers(model))
        if kind != self.model_type:
            raise OtherModelError(
                f"the calibration is for a model of type {self.model_type!r} "
                f"({self.model_name or 'no name'}), got {kind!r} ({name or 'no name'}); "
                f"{_WHAT_TO_DO}"
            )
        if len(heads) != len(self.head_counts):
            raise OtherModelError(
                f"the calibration is for {len(self.head_counts)} attention layers, "
                f"{type(model).__name__} has {len(heads)}; {_WHAT_TO_DO}"
            )
        for index, (expected, got) in enumerate(zip(self.head_counts, heads, strict=True)):
            if None not in (expected, got) and expected != got:
                raise OtherModelError(
                    f"the calibration is for {expected} query heads in layer {index}, "
                    f"{type(model).__name__} has {got}; {_WHAT_TO_DO}"
                )
        if self.model_name and name and Path(self.model_name).name != Path(name).name:
            warnings.warn(
                f"the calibration was made for {self.model_name!r} and is used for {name!r}; "
                "unless these are the same weights, calibrate this one",
                stacklevel=3,
            )

    def summary(self) -> str:
        """A few lines: how many heads change, and what that does to held-out data.

        Example:
            >>> from sharpmax.models import Calibration
            >>> print(Calibration("organisation/model", "llama", (4, 4)).summary())
            model: nothing held: leave this model alone
        """
        name = Path(self.model_name).name or self.model_type
        family = self.notes.get("family")
        name = f"{name}, {family}" if family else name
        if not self.layers:
            return f"{name}: nothing held: leave this model alone"
        heads = sum(
            changed(layer.policy, layer.gain, self.head_counts[layer.index] or 0)
            for layer in self.layers
        )
        every = sum(count or 0 for count in self.head_counts)
        lines = [f"{name}: {heads:,} of {every:,} heads change"]
        test = self.notes.get("test", {})
        if self.before is not None and self.after is not None:
            what = self.objective or "objective"
            lines.append(f"{what}: {_told(self.before, self.after, test.get('objective'))}")
        if "text" in test:
            guard, tolerance = test["text"], self.notes.get("tolerance")
            line = f"loss on ordinary text: {_told(guard['before'], guard['after'], guard)}"
            lines.append(line if tolerance is None else f"{line}, tolerance {tolerance:g}")
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Write the calibration as JSON, whole or not at all, with a seal.

        Returns:
            The path.

        Raises:
            ValueError: there is a NaN or an infinity in it.
        """
        return write_sealed(path, FORMAT, self.to_dict())

    @staticmethod
    def load(path: str | Path, model: PreTrainedModel | None = None) -> Calibration:
        """Read what `save` wrote, and check it against a model if one is given.

        Raises:
            DamagedFileError: the file is cut off, was edited, or is something else.
            OtherModelError: it is for another model.
        """
        content = read_sealed(path, FORMAT)
        del content["kind"]
        try:
            layers = [
                LayerCalibration(
                    layer["index"],
                    None if layer["policy"] is None else Policy.from_dict(layer["policy"]),
                    layer["gain"],
                )
                for layer in content.pop("layers")
            ]
            calibration = Calibration(layers=tuple(layers), **content)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(
                f"{path}: not a calibration that can be read: {error}; calibrate the model again"
            ) from None
        if model is not None:
            calibration.check(model)
        return calibration

    def to_dict(self) -> dict[str, Any]:
        """The calibration as plain data, ready for JSON."""
        data = {
            **vars(self),
            "layers": [
                {
                    "index": layer.index,
                    "policy": None if layer.policy is None else layer.policy.to_dict(),
                    "gain": layer.gain,
                }
                for layer in self.layers
            ],
        }
        plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
        return plain


def _told(before: float, after: float, figures: Mapping[str, Any] | None) -> str:
    """A loss before and after, and its change with the interval where that is known."""
    change = f"{after - before:+.4f}"
    if figures is not None:
        low, high = figures["interval"]
        change += f", 95% interval {low:+.4f} to {high:+.4f}"
    return f"{before:.4f} → {after:.4f} ({change})"


def _identity(
    model: PreTrainedModel, layers: list[Layer]
) -> tuple[str, str, tuple[int | None, ...]]:
    """Name, type and head counts of a model."""
    name = getattr(model.config, "_name_or_path", "") or ""
    return name, model.config.model_type, tuple(layer.heads for layer in layers)
