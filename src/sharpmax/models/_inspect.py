"""Look at a model: find its attention layers, configurations, positions and ranks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sharpmax.models import _model_families as families
from sharpmax.models._config import SETTING
from sharpmax.models._way import CannotSharpenError, Layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_INTERFACE = re.compile(r"ALL_ATTENTION_FUNCTIONS\s*(\.get_interface\(|\[)")


def inner_models(model: nn.Module) -> list[PreTrainedModel]:
    """Return the transformers models that `model` is or contains, without those inside others."""
    inside: list[Any] = [each for each in model.modules() if _is_of_transformers(each)]
    nested = {id(part) for each in inside for part in each.modules() if part is not each}
    return [each for each in inside if id(each) not in nested]


def inner_model(model: nn.Module) -> PreTrainedModel:
    """Return the one transformers model that `model` is or contains."""
    found = inner_models(model)
    if len(found) != 1:
        raise TypeError(
            "model: expected a transformers model, or a module that contains exactly one, "
            f"got {type(model).__name__} with {len(found)}"
        )
    return found[0]


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """Return the attention layers of a model, in the order of its modules."""
    found: list[tuple[str, nn.Module, str | None]] = []
    for name, module in model.named_modules():
        if _is_of_transformers(module):
            # The base class mentions the interface but has no attention of its own.
            continue
        if _uses_interface(module):
            found.append((name, module, _unreachable(module)))
        elif found and name.startswith(found[-1][0] + "."):
            # A submodule of the previous layer.
            continue
        elif _looks_like_attention(module):
            reason = f"{type(module).__name__} does not use transformers' attention interface"
            found.append((name, module, reason))
    layers = []
    for index, (name, module, unreachable) in enumerate(found):
        kind = families.layer_kind(name, module, source_of(module))
        heads = families.head_count(module)
        layers.append(Layer(index, name, module, kind, heads, unreachable))
    return layers


def configs(model: PreTrainedModel) -> list[Any]:
    """Return every configuration that names an attention: of the model, submodels and layers."""
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if not hasattr(config, SETTING) or id(config) in found:
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


def own_temperatures(model: PreTrainedModel) -> tuple[str, ...]:
    """Return how the model itself changes its temperature with the length, one line per reason."""
    notes = (note for config in configs(model) for note in families.temperature_notes(config))
    return tuple(dict.fromkeys(notes))


def positions(model: PreTrainedModel) -> int | None:
    """Return the number of positions of a model, or None if its configuration does not say."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    return limit - families.first_position(model)


def check_positions(model: PreTrainedModel, name: str, tokens: int) -> None:
    """Raise `ValueError` if a model has fewer positions than an input called `name` has tokens."""
    limit = positions(model)
    if limit is not None and tokens > limit:
        raise ValueError(
            f"{name}: expected at most the {limit} positions of {type(model).__name__}, got "
            f"{tokens} tokens; use shorter inputs"
        )


def check_items(model: PreTrainedModel, name: str, items: Iterable[Any]) -> None:
    """Check the positions for windows, and for questions with their answers."""
    # The last token of an answer is not read.
    counted = [item for item in items if hasattr(item, "ids")]
    sizes = (len(item.ids) + len(getattr(item, "answer_ids", ())[1:]) for item in counted)
    check_positions(model, name, max(sizes, default=0))


def embedding(model: PreTrainedModel) -> Tensor:
    """Return the embedding matrix of the tokens."""
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    return weight


def vocabulary(model: PreTrainedModel) -> int:
    """Return the number of tokens that a model knows."""
    weight = embedding(model)
    # DeepSpeed leaves an empty tensor where a weight is spread over ranks.
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def input_device(model: PreTrainedModel) -> torch.device:
    """Return where the tokens of a model belong, parts of which may be on other devices or disk."""
    device = embedding(model).device
    return torch.device("cpu") if device.type == "meta" else device


def tensor_parallel(model: PreTrainedModel) -> tuple[int, int]:
    """Return the number of ranks that share the heads, and the rank of this process."""
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None:
        return 1, 0
    names = getattr(mesh, "mesh_dim_names", None) or ()
    if "tp" in names and len(names) > 1:
        mesh = mesh["tp"]
    elif names and "tp" not in names:
        return 1, 0
    return int(mesh.size()), int(mesh.get_local_rank())


def check_reachable(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Raise `CannotSharpenError` if no layer can be sharpened, or none without a wrong result."""
    name = type(model).__name__
    if not layers:
        raise CannotSharpenError(f"{name}: expected a model with attention layers, found none")
    for layer in layers:
        argument = families.chosen_keys(source_of(layer.module))
        if argument and layer.unreachable is None:
            raise CannotSharpenError(
                f"{name}: {layer.name} restricts its attention to chosen keys ({argument}=), which "
                "sharpened attention does not support; use a model without an indexer"
            )
    if all(layer.unreachable is not None for layer in layers):
        raise CannotSharpenError(
            f"{name}: no attention layer can be reached. {layers[0].unreachable}; use a model "
            "whose attention goes through transformers' AttentionInterface, or, if this one calls "
            "scaled_dot_product_attention, pass sharpmax.sharpen an example"
        )


def check_causal_lm(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Raise `CannotSharpenError` unless the model predicts next tokens and can be sharpened."""
    untyped: Any = model
    if getattr(model.config, "is_encoder_decoder", False):
        wrong, advice = "is an encoder-decoder", "use a decoder"
    elif layers and all(layer.kind in ("encoder", "cross") for layer in layers):
        wrong, advice = "attends to later tokens", "use a decoder"
    elif untyped.get_output_embeddings() is None:
        wrong, advice = "has no language-model head", "load it with AutoModelForCausalLM"
    else:
        check_reachable(model, layers)
        return
    raise CannotSharpenError(
        f"{type(model).__name__}: expected a causal language model, such as LlamaForCausalLM, but "
        f"this one {wrong}; {advice}"
    )


def _is_of_transformers(module: nn.Module) -> bool:
    # Before this module is imported, there are none.
    known = sys.modules.get("transformers.modeling_utils")
    return known is not None and isinstance(module, known.PreTrainedModel)


def _uses_interface(module: nn.Module) -> bool:
    return _INTERFACE.search(source_of(module)) is not None


def source_of(module: nn.Module) -> str:
    """Return the source of the class of a module and its bases, without PyTorch's own."""
    kind: Any = type(module)
    return _source(kind)


@cache
def _source(kind: Any) -> str:
    text = ""
    for owner in kind.__mro__:
        if owner.__module__.startswith("torch.") or owner is object:
            continue
        # A class that was made at run time has no source.
        with suppress(OSError, TypeError):
            text += inspect.getsource(owner)
    return text


def _unreachable(module: nn.Module) -> str | None:
    """Return why a module that uses the interface would not find our attention there."""
    name = type(module).__name__
    if not hasattr(getattr(module, "config", None), SETTING):
        return f"{name} has no configuration that names its attention"
    interface = getattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS", None)
    if "sdpa" in getattr(interface, "_local_mapping", {}):
        return f"{name} replaces PyTorch's attention with its own"
    return None


def _looks_like_attention(module: nn.Module) -> bool:
    """Tell whether a module is an attention, no submodule of which uses the interface."""
    return families.sounds_like_attention(module) and not any(
        _uses_interface(each) or "Attention" in type(each).__name__
        for each in module.modules()
        if each is not module
    )
