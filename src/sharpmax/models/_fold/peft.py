"""Write a calibration as a PEFT IA³ adapter, and read one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sharpmax._files import DamagedFileError, replace_file
from sharpmax.models import _model_families as families
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._fold.places import Scaling
from sharpmax.models._fold.report import CannotFoldError
from sharpmax.models._open import open_model
from sharpmax.policies import Constant

if TYPE_CHECKING:
    from sharpmax.models._way import Layer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _SUFFIX = "base_model.model.", ".ia3_l"


def write_adapter(
    folder: Path, model: nn.Module, scalings: list[Scaling], base: str, card: str
) -> None:
    """Write scalings of projections as the files of an adapter.

    An IA³ adapter multiplies the outputs of a projection, its bias included, or the inputs of a
    "feedforward" one: a temperature is the former, a gain the latter.
    """
    from safetensors.torch import save_file

    vectors: dict[str, Tensor] = {}
    inputs: list[str] = []
    for each in scalings:
        name, _, kind = each.name.rpartition(".")
        if kind == "bias":
            continue  # scaled with the outputs
        module = model.get_submodule(name) if kind == "weight" else None
        if not families.is_projection(module):
            raise CannotFoldError(
                f"{each.name}: expected a projection, which an IA³ adapter can scale; use "
                "sharpmax.fold for this model"
            )
        own = each.factors.T if families.is_transposed(module) else each.factors
        if own.shape[0] == 1:
            inputs.append(name)
        vectors[name] = own.float().contiguous()
    transposed = {families.is_transposed(model.get_submodule(name)) for name in vectors}
    config = {
        "peft_type": "IA3",
        "base_model_name_or_path": base or None,
        "target_modules": sorted(vectors),
        "feedforward_modules": sorted(inputs),
        "fan_in_fan_out": transposed == {True},
        "init_ia3_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "exclude_modules": None,
        "revision": None,
        "task_type": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"{_PREFIX}{name}{_SUFFIX}": vector for name, vector in vectors.items()}
    with replace_file(folder / WEIGHTS) as temporary:
        save_file(named, str(temporary), metadata={"format": "pt"})
    with replace_file(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    with replace_file(folder / "README.md") as temporary:
        head = f"---\nbase_model: {json.dumps(base)}\nlibrary_name: peft\n---\n\n" if base else ""
        temporary.write_text(head + card, encoding="utf-8")


def read_adapter(folder: Path, model: nn.Module) -> Calibration:
    """Read an adapter whose factors are the same within each head of a model."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    way = open_model(model)
    if not way.of_transformers:
        raise TypeError(f"model: expected a transformers model, got {type(model).__name__}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        vectors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise DamagedFileError(
            f"{folder}: expected an adapter, {CONFIG} and {WEIGHTS}, got {error}; pass the folder "
            "that PEFT or Calibration.to_peft wrote"
        ) from None
    if not isinstance(config, dict) or config.get("peft_type") != "IA3":
        got = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise CannotFoldError(
            f"{folder}: expected an IA³ adapter, got {got!r}; a calibration cannot express others"
        )
    policies: dict[int, Constant] = {}
    gains: dict[int, list[float]] = {}
    outputs = {families.output_projection(way.model, each.name): each for each in way.layers}
    for key, vector in sorted(vectors.items()):
        name = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        flat = vector.double().flatten()
        if (layer := outputs.get(name)) is not None and vector.shape[0] == 1:
            gains[layer.index] = _per_head(name, flat, layer)
        elif (layer := _queries(way.layers, name)) is not None and vector.shape[-1] == 1:
            child = name.rpartition(".")[2]
            policies[layer.index] = Constant(_of_queries(way.model, name, child, flat, layer))
        else:
            raise CannotFoldError(
                f"{folder}: {name}: expected outputs of a query projection or inputs of an output "
                "projection, which temperatures and gains scale"
            )
    return Calibration.of(way, policies, gains=gains)


def _queries(layers: list[Layer], name: str) -> Layer | None:
    known = (
        *families.QUERY_PROJECTIONS,
        *families.STACKED_PROJECTIONS,
        *families.INTERLEAVED_PROJECTIONS,
    )
    parent, _, child = name.rpartition(".")
    return next((each for each in layers if each.name == parent and child in known), None)


def _of_queries(
    model: nn.Module, name: str, child: str, factors: Tensor, layer: Layer
) -> list[float]:
    """Return one factor per head; keys and values of a fused projection must keep theirs."""
    heads = layer.heads or 1
    if child in families.QUERY_PROJECTIONS:
        return _per_head(name, factors, layer)
    if child in families.INTERLEAVED_PROJECTIONS:
        parts = factors.reshape(heads, 3, -1)
        queries, others = parts[:, 0].flatten(), parts[:, 1:]
    else:
        output: Any = model.get_submodule(families.output_projection(model, layer.name) or "")
        width = output.weight.shape[0 if families.is_transposed(output) else 1]
        queries, others = factors[:width], factors[width:]
    if not bool((others == 1).all()):
        raise CannotFoldError(f"{name}: expected unchanged keys and values, got scaled ones")
    return _per_head(name, queries, layer)


def _per_head(name: str, factors: Tensor, layer: Layer) -> list[float]:
    rows = factors.reshape(layer.heads or 1, -1)
    if not bool((rows == rows[:, :1]).all()):
        raise CannotFoldError(
            f"{name}: expected one factor per head, got factors that differ within a head; a "
            "calibration cannot express this adapter"
        )
    found: list[float] = rows[:, 0].tolist()
    return found
