"""The attention layers of a model: which, of which kind, and whether a door leads to them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

Kind = Literal["global", "sliding", "chunked", "cross", "encoder"]
KINDS: tuple[Kind, ...] = ("global", "sliding", "chunked", "cross", "encoder")

_INTERFACE = re.compile(r"ALL_ATTENTION_FUNCTIONS\s*(\.get_interface\(|\[)")
_INDICES = re.compile(r"\b(\w*indices)=")
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_CROSS_NAMES = (
    "encoder_attn",
    "encdecattention",
    "crossattention",
    "cross_attn",
    "cross_attention",
)


@dataclass(frozen=True, eq=False)
class Layer:
    """An attention layer of a model.

    Attributes:
        index: its place among the attention layers, in the order of `model.named_modules()`; in a
            decoder-only model without other kinds of layers, the number of the layer.
        name: of the module.
        module: the module.
        kind: "global" (causal, over everything before), "sliding" or "chunked" (causal, over what
            is near), "cross" (over another sequence), or "encoder" (in both directions).
        heads: how many query heads it has on all ranks, where that can be seen.
        closed: why no door leads to it, or None.
    """

    index: int
    name: str
    module: nn.Module
    kind: Kind
    heads: int | None
    closed: str | None


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """The attention layers of a model, in the order of its modules."""
    found: list[tuple[str, nn.Module, str | None]] = []
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            # The base class mentions the interface without having an attention.
            continue
        if _goes_through_interface(module):
            found.append((name, module, _closed(module)))
        elif found and name.startswith(found[-1][0] + "."):
            # A part of the layer before.
            continue
        elif _looks_like_attention(module):
            reason = f"{type(module).__name__} computes its attention itself, not by the interface"
            found.append((name, module, reason))
    return [
        Layer(index, name, module, _kind(name, module), _heads(module), closed)
        for index, (name, module, closed) in enumerate(found)
    ]


def configs(model: PreTrainedModel) -> list[Any]:
    """Every configuration that says which attention is used: of submodels, layers and parts."""
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if not hasattr(config, "_attn_implementation_internal") or id(config) in found:
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


def chooses_keys(layers: list[Layer]) -> tuple[str, str] | None:
    """The first layer that tells its attention which keys to take, and the name of the argument."""
    for layer in layers:
        if layer.closed is None and (match := _INDICES.search(_source_of(layer.module))):
            return layer.name, match.group(1)
    return None


def own_temperatures(model: PreTrainedModel) -> tuple[str, ...]:
    """What is known of a model that changes its temperature with the length, a line a reason."""
    notes = []
    for config in configs(model):
        kind = config.model_type
        if _read(config, "attn_temperature_tuning"):
            notes.append(f"{kind}: attn_temperature_tuning scales queries with their position")
        if _read(config, "log_scaling_n_floor") is not None:
            notes.append(f"{kind}: log_scaling_n_floor scales queries with their position")
        if kind == "beam":
            # Nothing in its configuration says so.
            notes.append(f"{kind}: layers without rotary positions scale queries with theirs")
        for settings in _dictionaries(_read(config, "rope_parameters")):
            if settings.get("llama_4_scaling_beta"):
                notes.append(f"{kind}: llama_4_scaling_beta scales queries with their position")
            if settings.get("rope_type") in ("yarn", "longrope"):
                name = settings["rope_type"]
                notes.append(f"{kind}: {name} scales the logits for contexts that it extends")
    return tuple(dict.fromkeys(notes))


def _goes_through_interface(module: nn.Module) -> bool:
    """Whether a module looks its attention up in transformers' interface."""
    return _INTERFACE.search(_source_of(module)) is not None


def _source_of(module: nn.Module) -> str:
    kind: Any = type(module)
    return _source(kind)


@cache
def _source(kind: Any) -> str:
    """The source of a class and of those that it is made from, PyTorch's own left out."""
    text = ""
    for owner in kind.__mro__:
        if owner.__module__.startswith("torch.") or owner is object:
            continue
        try:
            text += inspect.getsource(owner)
        except (OSError, TypeError):
            # A class that was made at run time has no source: nothing can be said of it.
            continue
    return text


def _closed(module: nn.Module) -> str | None:
    """Why a module that uses the interface would not find the door there."""
    if not hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
        return f"{type(module).__name__} has no configuration that says which attention to use"
    interface = getattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS", None)
    if "sdpa" in getattr(interface, "_local_mapping", {}):
        return f"{type(module).__name__} replaces PyTorch's attention by one of its own"
    return None


def _looks_like_attention(module: nn.Module) -> bool:
    """Whether a module is an attention that no part of it hands to the interface."""
    if not re.search("attention|attn", type(module).__name__, re.IGNORECASE):
        return False
    if not any(True for _ in module.parameters()):
        return False
    parts = [part for part in module.modules() if part is not module]
    return not any(
        _goes_through_interface(part) or re.search("Attention", type(part).__name__)
        for part in parts
    ) and not re.search("Output|Norm|Embedding|Bias|Pooler|Mask", type(module).__name__)


def _kind(name: str, module: nn.Module) -> Kind:
    last = name.rsplit(".", 2)[-2:]
    if getattr(module, "is_cross_attention", False) or any(
        part.lower() in _CROSS_NAMES for part in last
    ):
        return "cross"
    if re.search("cross", type(module).__name__, re.IGNORECASE):
        return "cross"
    if not getattr(module, "is_causal", True):
        return "encoder"
    config = getattr(module, "config", None)
    types, number = _read(config, "layer_types"), getattr(module, "layer_idx", None)
    if types and isinstance(number, int) and number < len(types):
        return next((kind for kind in ("sliding", "chunked") if kind in types[number]), "global")
    # A layer says it itself, or, where all layers are alike, hands on what the configuration says.
    window = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window") and "sliding_window" in _source_of(module):
        window = _read(config, "sliding_window")
    return "global" if window is None else "sliding"


def _heads(module: nn.Module) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEAD_COUNTS:
            if isinstance(count := _read(owner, name), int):
                return count
    return None


def _read(owner: Any, name: str) -> Any:
    """An attribute; None where there is none, or where layers do not agree on it."""
    try:
        return getattr(owner, name, None)
    except RuntimeError:
        return None


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """A dictionary and those in it: settings may be given for each kind of layer."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _dictionaries(part)
