"""Sharpening the attention of a Hugging Face model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from sharpmax._attention.api import Implementation
from sharpmax._attention.problem import SinkRole
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._handle import Sharpened
from sharpmax.models._inspect import Layer, attention_layers, chooses_keys
from sharpmax.models._plan import CannotSharpenError, Which, plan
from sharpmax.models._rule import Rule
from sharpmax.policies import Identity, Policy


def sharpen(
    model: nn.Module,
    policy: Policy | Mapping[Which, Policy | None] | Calibration,
    *,
    layers: Iterable[Which] | Which | None = None,
    heads: Collection[int] | Mapping[Which, Collection[int]] | None = None,
    impl: Implementation = "auto",
    detach_temperature: bool = False,
    sink_role: SinkRole = "key",
) -> Sharpened:
    """Keep the attention of a Hugging Face model sharp, at once, without touching its weights.

    Every attention layer that uses transformers' `AttentionInterface` can be sharpened: decoders,
    encoders, cross-attention; with grouped queries, sliding windows, soft caps, sinks and position
    biases. The entropy of a row is that of what enters the softmax (after norms, scale, cap and
    bias), over visible keys alone, and beta multiplies all of it. Layers without a policy use
    PyTorch's own attention.

    Change it between sequences, not within one: what a cache holds was computed by the rule of its
    time. Weights are not given (`output_attentions` gives None; `sharpmax.models.record` tells what
    rows are like). Dropout of weights is passed on, at the price of memory quadratic in the length.
    Under gradient checkpointing stay sharpened until the backward pass is over.

    Args:
        model: of transformers, or a module around one: compiled, parallel, with adapters.
        policy: for every layer; or for some, by index, name or kind (`{"global": Paper(), 0:
            None}`), of which the last that fits a layer counts; or a `Calibration`. A parameter
            with one axis has an entry a query head.
        layers: only these, by index, name or kind; None for all. The index is the place among the
            attention layers, as in `Sharpened.status()`; kinds are "global", "sliding", "chunked",
            "cross" and "encoder".
        heads: only these heads, in every layer, or by layer as for `policy`; for the others beta is
            exactly 1.
        impl: as in `sharpmax.attention`.
        detach_temperature: hold beta constant in differentiation.
        sink_role: of a learned sink, as gpt-oss has it. "key": it is one more key, which counts in
            entropy and n and is sharpened with them. "apart": it does neither.

    Returns:
        A handle, which is a context manager: `restore`, `disabled`, `status`.

    Raises:
        CannotSharpenError: nothing would be changed, the model is sharpened already, or it tells
            its attention which keys to take (`indices`).
        TypeError, ValueError: naming the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     vocab_size=32,
        ...     hidden_size=16,
        ...     intermediate_size=16,
        ...     num_hidden_layers=2,
        ...     num_attention_heads=2,
        ... )
        >>> model = LlamaForCausalLM(config).eval()
        >>> with sharpmax.sharpen(model, sharpmax.policies.Exponential(1.0)) as sharpened:
        ...     logits = model(torch.arange(8)[None]).logits
        ...     sharpened
        Sharpened(LlamaForCausalLM: 2 of 2 attention layers)
        >>> sharpened.restore()
    """
    model = inner_model(model)
    found = attention_layers(model)
    check_reachable(model, found)
    if isinstance(policy, Calibration):
        policy.check(model)
    rules = plan(found, policy, layers, heads)
    _say_what_is_missing(model, found, policy, layers, rules)
    return Sharpened(
        model,
        found,
        rules,
        impl=impl,
        detach_temperature=detach_temperature,
        sink_role=sink_role,
    )


def inner_model(model: object) -> PreTrainedModel:
    """The model of transformers that something is, or that it is wrapped around."""
    found = []
    if isinstance(model, nn.Module):
        inside = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
        parts = {id(part) for each in inside for part in each.modules() if part is not each}
        found = [each for each in inside if id(each) not in parts]
    if len(found) != 1:
        raise TypeError(
            "model: expected a model of transformers, or a module around one of them, "
            f"got {type(model).__name__} with {len(found)}"
        )
    return found[0]


def check_reachable(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Refuse a model in which nothing could be sharpened, or only to its harm."""
    name = type(model).__name__
    if not layers:
        raise CannotSharpenError(
            f"{name}: there is no attention layer in it, so nothing to sharpen; give a model with "
            "attention"
        )
    if chooses := chooses_keys(layers):
        raise CannotSharpenError(
            f"{name}: {chooses[0]} tells its attention which keys to take ({chooses[1]}=), and "
            "sharpened attention would take all of them; give a model without an indexer"
        )
    if all(layer.closed is not None for layer in layers):
        raise CannotSharpenError(
            f"{name}: no attention layer can be reached. {layers[0].closed}; give a model that "
            "uses the AttentionInterface of transformers"
        )


def check_causal_lm(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Refuse a model that cannot be asked for the next token, or has nothing to sharpen.

    Raises:
        CannotSharpenError: saying what was expected and what came.
    """
    name, untyped = type(model).__name__, cast("Any", model)
    if getattr(model.config, "is_encoder_decoder", False):
        wrong, advice = "reads two sequences", "give a decoder"
    elif layers and all(layer.kind in ("encoder", "cross") for layer in layers):
        wrong, advice = "sees what comes after a token", "give a decoder"
    elif untyped.get_output_embeddings() is None:
        wrong, advice = "has no head for the next token", "load it by AutoModelForCausalLM"
    else:
        check_reachable(model, layers)
        return
    raise CannotSharpenError(
        f"{name}: expected a causal language model, such as LlamaForCausalLM, but this one "
        f"{wrong}; {advice}"
    )


def _say_what_is_missing(
    model: PreTrainedModel,
    found: list[Layer],
    policy: object,
    layers: object,
    rules: dict[int, Rule],
) -> None:
    """Raise if something was asked for and nothing would come of it; warn of a part."""
    name = type(model).__name__
    if isinstance(policy, Policy):
        asked: list[object] = [policy]
    elif isinstance(policy, Mapping):
        asked = list(policy.values())
    else:
        asked = []
    if all(isinstance(each, Identity | None) for each in asked):
        return
    if all(rule.is_stock for rule in rules.values()):
        raise CannotSharpenError(
            f"{name}: no layer and head is left of those that were chosen; choose some of "
            "Sharpened.status(), or leave out layers and heads to take all"
        )
    closed = [f"{layer.name}: {layer.closed}" for layer in found if layer.closed is not None]
    if closed and isinstance(policy, Policy) and layers is None:
        warnings.warn(f"{name}: not sharpened: {'; '.join(closed)}", stacklevel=3)
