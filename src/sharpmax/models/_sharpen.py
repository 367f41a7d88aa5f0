"""Sharpen the attention of a model, or record its rows without changing it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import nn

from sharpmax._attention import Implementation, SinkRole
from sharpmax.models._attachment import Recorder, statistics_to
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._handle import Sharpened
from sharpmax.models._model_families import KINDS
from sharpmax.models._open import open_model
from sharpmax.models._rule import Rule
from sharpmax.models._way import CannotSharpenError, Layer
from sharpmax.policies import Identity, Policy

Which = int | str
"""One layer by index or name, or several by kind."""

Heads = Collection[int] | Mapping[Which, Collection[int]]
"""Indices of heads, the same in every layer or by layer."""


def sharpen(
    model: nn.Module,
    policy: Policy | Mapping[Which, Policy | None] | Calibration,
    *,
    layers: Iterable[Which] | Which | None = None,
    heads: Heads | None = None,
    impl: Implementation = "auto",
    detach_temperature: bool = False,
    sink_role: SinkRole = "key",
    example: Any = None,
) -> Sharpened:
    """Keep the attention of a model sharp, without changing its weights.

    In a Hugging Face model, this works for every attention layer that uses transformers'
    `AttentionInterface`: decoders, encoders and cross-attention, with grouped queries, sliding
    windows, soft caps, sinks and position biases. In any other PyTorch module, it works for every
    call of `scaled_dot_product_attention`, `nn.MultiheadAttention` and `flex_attention` without a
    `score_mod` in a forward pass. Such a call is a layer, named "blocks.3.attn" by its module, and
    "blocks.3.attn#1" if it is the second of that module in a pass; other attention is named in
    `status()` with the reason why it cannot be reached.

    The entropy of a row is that of its final logits (after norms, scale, cap and
    bias) over visible keys, and beta multiplies these logits. Layers without a policy use PyTorch's
    own attention.

    Sharpen or restore between sequences: a cache holds keys and values that were computed under the
    previous rule. `output_attentions` returns None; use `sharpmax.models.record` for statistics of
    the rows. Attention dropout works, with memory quadratic in the length. Under gradient
    checkpointing, keep the model sharpened until the backward pass has ended.

    Args:
        model: a transformers model, or a module that contains one: compiled, parallel, with
            adapters; or any other PyTorch module.
        policy: one policy for every layer; a mapping from indices, names or kinds of layers to
            policies (`{"global": Paper(), 0: None}`), in which the last match counts; or a
            `Calibration`. A parameter with one axis has one entry per query head.
        layers: restrict to these layers, by index, name or kind; None for all. The index counts
            attention layers, as in `Sharpened.status()`; kinds are "global", "sliding", "chunked",
            "cross" and "encoder".
        heads: restrict to these heads, in every layer or by layer as in `policy`. For other heads,
            beta is exactly 1.
        impl: as in `sharpmax.attention`.
        detach_temperature: treat beta as a constant in the backward pass.
        sink_role: role of a learned sink (gpt-oss). "key": the sink is one more key, which counts
            in entropy and n and is sharpened. "apart": neither.
        example: arguments for one call of a model that is not of transformers, which finds its
            layers: a tuple, a mapping or one argument, or a function that calls the model.
            Required to choose layers or heads; otherwise they are found as the model is called.

    Returns:
        A handle, which is a context manager: `restore`, `disabled`, `status`.

    Raises:
        CannotSharpenError: nothing would change, the model is already sharpened, or it restricts
            its attention to chosen keys (`indices`).
        OtherModelError: the calibration is for another model.
        TypeError, ValueError: names the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> with sharpmax.sharpen(model, sharpmax.policies.Exponential(1.0)) as sharpened:
        ...     logits = model(torch.arange(8)[None]).logits
        ...     sharpened
        Sharpened(LlamaForCausalLM: 2 of 2 attention layers)
        >>> sharpened.restore()
    """
    way = open_model(model, example)
    found, everywhere = way.layers, isinstance(policy, Policy) and layers is None and heads is None
    if not way.complete and not everywhere:
        raise ValueError(
            "example: expected inputs of the model, got None; a model that is not of transformers "
            "has to be called before layers or heads can be chosen"
        )
    if isinstance(policy, Calibration):
        policy.check(way)
    rules = plan(found, policy, layers, heads)
    name = type(way.model).__name__
    if (
        way.complete
        and _changes_something(policy)
        and all(rule.is_stock for rule in rules.values())
    ):
        raise CannotSharpenError(
            f"{name}: expected layers and heads that exist in this model, got none; choose from "
            "Sharpened.status(), or leave out layers and heads"
        )
    missing = [f"{each.name}: {each.unreachable}" for each in found if each.unreachable]
    if missing and isinstance(policy, Policy) and layers is None and _changes_something(policy):
        warnings.warn(f"{name}: not sharpened: {'; '.join(missing)}", stacklevel=2)
    return Sharpened(
        way, rules, Rule.make(policy) if everywhere else None,  # type: ignore[arg-type]
        impl=impl, detach_temperature=detach_temperature, sink_role=sink_role,
    )  # fmt: skip


def record(model: nn.Module, recorder: Recorder, *, sink_role: SinkRole = "key") -> Sharpened:
    """Pass the statistics of every row of attention to a recorder, without changing the model.

    Use it instead of `output_attentions=True`, whose weights grow with the square of the length.
    Entropy, largest weight and logsumexp follow from the four statistics of a row.

    Args:
        model: a transformers model, a module that contains one, or any other PyTorch module.
        recorder: every attention layer calls its `record(layer, statistics)` in each pass.
        sink_role: role of a learned sink, as in `sharpmax.sharpen`.

    Returns:
        A handle, which is a context manager; `restore()` ends the recording.

    Raises:
        CannotSharpenError: no attention layer can be reached, or the model is already sharpened.
        TypeError: names the argument, what was expected and what came.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> class Entropies:
        ...     def record(self, layer, statistics):
        ...         print(layer, tuple(statistics.entropy().shape))
        >>> with sharpmax.models.record(model, Entropies()):
        ...     logits = model(torch.arange(8)[None]).logits
        0 (1, 2, 8)
        1 (1, 2, 8)
    """
    if not isinstance(recorder, Recorder):
        raise TypeError(f"recorder: expected an object with a method record, got {recorder!r:.40}")
    return Sharpened(open_model(model), sink_role=sink_role, observe=statistics_to(recorder))


def plan(
    layers: list[Layer], policy: object, which: Iterable[Which] | Which | None, heads: Heads | None
) -> dict[int, Rule]:
    """Return the rule of each layer that gets one, by its index."""
    if not isinstance(policy, Calibration):
        return {
            index: Rule.make(own, count=layers[index].heads, heads=_heads_of(layers, index, heads))
            for index, own in _policies(layers, policy, which).items()
        }
    if which is not None or heads is not None:
        raise ValueError("layers, heads: expected None with a calibration, which names its own")
    return {
        own.index: Rule.make(own.policy, count=_reached(layers[own.index]).heads, gain=own.gain)
        for own in policy.layers
    }


def _changes_something(policy: object) -> bool:
    """Tell whether the caller asked for a change; an empty calibration is a valid request."""
    asked = policy.values() if isinstance(policy, Mapping) else [policy]
    return not all(isinstance(each, Identity | Calibration | None) for each in asked)


def _policies(
    layers: list[Layer], policy: object, which: Iterable[Which] | Which | None
) -> dict[int, Policy | None]:
    """Return the policy of each chosen layer."""
    reachable = {layer.index for layer in layers if layer.unreachable is None}
    if which is not None:
        several = [which] if isinstance(which, int | str) else list(which)
        chosen = {index for each in several for index in _find(layers, each, "layers")}
        reachable = {_reached(layers[index]).index for index in sorted(chosen)}
    if isinstance(policy, Policy):
        return dict.fromkeys(sorted(reachable), policy)
    if not isinstance(policy, Mapping):
        raise TypeError(
            "policy: expected a policy, a mapping from layers to policies, or a Calibration, "
            f"got {policy!r}"
        )
    result: dict[int, Policy | None] = {}
    for each, value in policy.items():
        if not isinstance(value, Policy | None):
            raise TypeError(f"policy[{each!r}]: expected a policy or None, got {value!r}")
        for index in _find(layers, each, "policy"):
            if value is not None and each not in KINDS:
                _reached(layers[index])
            if index in reachable:
                result[index] = value
    return result


def _heads_of(layers: list[Layer], index: int, heads: Heads | None) -> Collection[int] | None:
    """Return the heads of a layer that get the policy; None means all."""
    if not isinstance(heads, Mapping):
        return heads
    found = [value for each, value in heads.items() if index in _find(layers, each, "heads")]
    return found[-1] if found else ()


def _find(layers: list[Layer], which: Any, argument: str) -> list[int]:
    """Return the indices of the layers that an index, a name or a kind selects."""
    if isinstance(which, bool) or not isinstance(which, int | str):
        raise TypeError(f"{argument}: expected an index, a name or a kind of layer, got {which!r}")
    if which in KINDS:
        return [each.index for each in layers if each.kind == which and each.unreachable is None]
    found = [layer.index for layer in layers if which in (layer.index, layer.name)]
    if not found and isinstance(which, int):
        raise ValueError(f"{argument}: expected an index from 0 to {len(layers) - 1}, got {which}")
    if not found:
        names = ", ".join(layer.name for layer in layers[:3])
        raise ValueError(
            f"{argument}: expected a kind ({', '.join(KINDS)}) or the name of an attention layer "
            f"({names}, …), got {which!r}"
        )
    return found


def _reached(layer: Layer) -> Layer:
    if layer.unreachable is not None:
        raise CannotSharpenError(f"{layer.name}: {layer.unreachable}")
    return layer
