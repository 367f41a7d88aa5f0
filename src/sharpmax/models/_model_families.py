"""What differs between model families: how they name, place and scale their attention.

`_inspect` and `_interface` work for every model that goes through transformers' attention
interface. To support a family that needs more, add its peculiarity here and a tiny model of it to
`tests/model_families.py`, which takes it through the common tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard

from torch import nn

Kind = Literal["global", "sliding", "chunked", "cross", "encoder"]
KINDS: tuple[Kind, ...] = ("global", "sliding", "chunked", "cross", "encoder")

IGNORED_ARGUMENTS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "logits_to_keep",
    "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "position_ids", "return_dict", "seq_idx", "use_cache",
    "sliding_window",  # The mask already contains the window.
}  # fmt: skip
"""Arguments that families pass to their attention and that do not change its result."""

QUERY_PROJECTIONS = (
    "q_b_proj", "q_proj", "query", "q_attn", "q_lin", "q", "linear_q", "Wq", "to_q",
)  # fmt: skip
"""Projections to queries alone; if a layer has several, the first is the last step."""

STACKED_PROJECTIONS = ("qkv_proj", "c_attn", "Wqkv", "qkv")
"""Projections to all queries, then all keys, then all values."""

INTERLEAVED_PROJECTIONS = ("query_key_value",)
"""Projections to the query, key and value of one head after the other."""

OUTPUT_PROJECTIONS = (
    "o_proj", "out_proj", "c_proj", "dense", "out_lin", "o", "linear_out", "Wo", "proj",
    "projection", "projection_layer", "output",
)  # fmt: skip
"""Projections from the outputs of all heads."""

OUTPUT_NORMS = ("attn_sub_norm", "groupnorm", "inner_attn_ln", "o_norm")
"""Norms of the outputs of heads, before the projection."""

_QUERY_NORM = re.compile(r"(q|qk|query)(_b)?_?(layer)?_?norm")
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_CROSS_NAMES = {
    "encoder_attn", "encdecattention", "crossattention", "cross_attn", "cross_attention",
}  # fmt: skip
_CHOSEN_KEYS = re.compile(r"\b(\w*indices)=")


def layer_kind(name: str, module: nn.Module, source: str) -> Kind:
    """Return the kind of an attention layer, given its name and the source of its class."""
    if (
        getattr(module, "is_cross_attention", False)
        or any(word.lower() in _CROSS_NAMES for word in name.rsplit(".", 2)[-2:])
        or re.search("cross", type(module).__name__, re.IGNORECASE)
    ):
        return "cross"
    if not getattr(module, "is_causal", True):
        return "encoder"
    config = getattr(module, "config", None)
    types, number = _read(config, "layer_types"), getattr(module, "layer_idx", None)
    if types and isinstance(number, int) and number < len(types):
        return next((kind for kind in ("sliding", "chunked") if kind in types[number]), "global")
    # The window is on the layer, or, where all layers are alike, in the configuration.
    window = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window") and "sliding_window" in source:
        window = _read(config, "sliding_window")
    return "global" if window is None else "sliding"


def head_count(module: nn.Module) -> int | None:
    """Return the number of query heads of an attention layer on all ranks, or None."""
    for owner in (module, getattr(module, "config", None)):
        for name in _HEAD_COUNTS:
            if isinstance(count := _read(owner, name), int):
                return count
    return None


def query_norm(module: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the norm of the queries after their projection, with its name, or None."""
    named = module.named_children()
    return next(((name, norm) for name, norm in named if _QUERY_NORM.fullmatch(name)), None)


def output_projection(model: nn.Module, name: str) -> str | None:
    """Return the name of the projection from the outputs of the heads of a layer, or None."""
    layer = model.get_submodule(name)
    for child in OUTPUT_PROJECTIONS:
        if isinstance(getattr(layer, child, None), nn.Module):
            return f"{name}.{child}"
    # BERT and its descendants have it in a sibling.
    parent = name.rpartition(".")[0]
    beside = getattr(model.get_submodule(parent), "output", None)
    return f"{parent}.output.dense" if hasattr(beside, "dense") else None


def is_transposed(module: nn.Module) -> bool:
    """Tell whether a projection stores its weight as [inputs, outputs], as those of GPT-2 do."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def is_projection(module: nn.Module | None) -> TypeGuard[nn.Module]:
    """Tell whether a module is a plain projection, of either layout."""
    return module is not None and (isinstance(module, nn.Linear) or is_transposed(module))


def sounds_like_attention(module: nn.Module) -> bool:
    """Tell whether the name of a class with weights says that it attends."""
    name = type(module).__name__
    return (
        re.search("attention|attn", name, re.IGNORECASE) is not None
        and re.search("Output|Norm|Embedding|Bias|Pooler|Mask", name) is None
        and next(module.parameters(), None) is not None
    )


def chosen_keys(source: str) -> str | None:
    """Return the argument by which a layer restricts its attention to keys of its choice."""
    found = _CHOSEN_KEYS.search(source)
    return found.group(1) if found else None


def first_position(model: nn.Module) -> int:
    """Return the first position that a token can have: RoBERTa counts from after its padding."""
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return int(padding) + 1
    return 0


def temperature_notes(config: Any) -> Iterator[str]:
    """Yield how a configuration changes the temperature with the length, one line per reason."""
    family = config.model_type
    scales = "scales queries with their position"
    if _read(config, "attn_temperature_tuning"):
        yield f"{family}: attn_temperature_tuning {scales}"
    if _read(config, "log_scaling_n_floor") is not None:
        yield f"{family}: log_scaling_n_floor {scales}"
    if family == "beam":
        # Its configuration does not say so.
        yield f"{family}: layers without rotary positions scale queries with their position"
    for settings in _dictionaries(_read(config, "rope_parameters")):
        if settings.get("llama_4_scaling_beta"):
            yield f"{family}: llama_4_scaling_beta {scales}"
        if settings.get("rope_type") in ("yarn", "longrope"):
            yield f"{family}: {settings['rope_type']} scales the logits of extended contexts"


def _read(owner: Any, name: str) -> Any:
    """Return an attribute; None where it is missing or differs between layers."""
    try:
        return getattr(owner, name, None)
    except RuntimeError:
        return None


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a dictionary and those inside it: settings may be given per kind of layer."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _dictionaries(inner)
