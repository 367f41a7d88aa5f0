"""The functions that transformers calls instead of its own attention."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from sharpmax import _attention
from sharpmax._attention import Implementation, Problem, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.models._model_families import IGNORED_ARGUMENTS
from sharpmax.models._rule import Rule
from sharpmax.policies import Identity, Policy

NAME = "sharpmax"
"""Name of the attention and of its masks. transformers matches substrings of such names."""

MASKED = f"{NAME}_masked"
"""The same for models with eager attention, where the mask alone decides what is visible.

Some of these models do not say that they are causal, and some add biases to their masks.
"""

NAMES = (NAME, MASKED)

ATTRIBUTE = "_sharpmax"
"""Attribute of an attention module that holds its `Attachment`: registries are process-wide."""

STOCK = "stock sdpa"
"""Implementation that the status shows for an unchanged layer."""


@runtime_checkable
class Recorder(Protocol):
    """Receive the statistics of every row of attention; pass it to `sharpmax.models.record`."""

    def record(self, layer: int, statistics: RowStatistics) -> None:
        """Receive the statistics of the untempered rows of one layer, [batch, heads, queries].

        Args:
            layer: index of the layer, as in `Sharpened.status()`.
            statistics: in single precision at least, without gradient. Rows of padding are
                included; rows without visible keys have a count of 0.
        """


@runtime_checkable
class Observer(Protocol):
    """Receive what every layer attends to, and measure any of its rows."""

    def observe(self, layer: int, problem: Problem) -> None:
        """Receive the problem of one layer, without values; neither change nor keep it."""


@dataclass(eq=False)
class Attachment:
    """What an attention module carries while it is sharpened.

    Attributes:
        layer: index of the layer.
        rule: what is done to all heads of the layer.
        heads: number of heads on all ranks, if known.
        local: what is done to the heads of this rank, under tensor parallelism.
        impl, detach_temperature, sink_role: as in `sharpmax.attention`.
        recorder: what receives every row, or None.
        used: implementation of the first call outside of compilation.
    """

    layer: int
    rule: Rule
    heads: int | None = None
    local: Rule | None = None
    impl: Implementation = "auto"
    detach_temperature: bool = False
    sink_role: SinkRole = "key"
    recorder: Recorder | Observer | None = None
    used: str | None = None

    def rule_for(self, heads: int) -> Rule:
        """Return the rule for a call with that many heads."""
        return self.rule if self.local is None or heads == self.heads else self.local


_NOT_ATTACHED = Attachment(0, Rule())


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention by the rule on the module; the arguments are those of transformers.

    A module without a policy gets PyTorch's own attention.

    Returns:
        The output, [batch, queries, heads, value width], and None instead of the weights.

    Raises:
        NotImplementedError: for an argument that may change the result and is not supported.
    """
    _check_arguments(module, kwargs)
    if output_attentions and not torch.compiler.is_compiling():
        warnings.warn(
            "output_attentions: sharpened attention returns None instead of weights; use "
            "sharpmax.models.record for the statistics of every row",
            stacklevel=2,
        )
    attachment: Attachment = getattr(module, ATTRIBUTE, _NOT_ATTACHED)
    rule, recorder = attachment.rule_for(query.shape[1]), attachment.recorder
    # PyTorch's own attention supports neither.
    beyond_sdpa = softcap is not None or s_aux is not None
    problem = None
    if beyond_sdpa or recorder is not None or rule.policy is not None:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        problem = _problem(
            query, key, value, attention_mask, position_bias, bool(is_causal),
            scale=scaling, softcap=softcap, sink=s_aux, sink_role=attachment.sink_role,
            dropout=dropout,
        )  # fmt: skip
    if recorder is not None and problem is not None:
        _tell(recorder, attachment, replace(problem, value=None, dropout=0.0))

    def stock() -> Tensor:
        if beyond_sdpa and problem is not None:
            return _attend(problem, Identity(), _NOT_ATTACHED)
        output: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
            is_causal=is_causal, position_bias=position_bias,
        )[0]  # fmt: skip
        return output

    if problem is None or rule.policy is None:
        output = stock()
    else:
        if attachment.used is None and not torch.compiler.is_compiling():
            attachment.used = _attention.choose(attachment.impl, problem, rule.policy)
        output = _attend(problem, rule.policy, attachment)
        if rule.chosen is not None:
            output = torch.where(rule.chosen.to(output.device)[:, None], output, stock())
    if rule.gain is not None:
        output = output * rule.gain.to(output)[:, None]
    return output, None


def masked_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute `attention_forward`, where every key is visible if there is no mask."""
    kwargs["is_causal"] = False
    return attention_forward(module, query, key, value, attention_mask, **kwargs)


def register() -> None:
    """Register both attentions and their masks with transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(MASKED, masked_attention_forward)
    AttentionMaskInterface.register(MASKED, eager_mask)


def _check_arguments(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if value is not None and name not in IGNORED_ARGUMENTS:
            raise NotImplementedError(
                f"{name}: {type(module).__name__} passes this argument to its attention, and "
                "sharpened attention does not support it; leave this layer unsharpened"
            )


def _tell(recorder: Recorder | Observer, attachment: Attachment, problem: Problem) -> None:
    if isinstance(recorder, Observer):
        with torch.no_grad():
            recorder.observe(attachment.layer, problem)
    else:
        recorder.record(attachment.layer, _attention.measure(problem, attachment.impl))


def _attend(problem: Problem, policy: Policy, attachment: Attachment) -> Tensor:
    output, _ = _attention.attend(problem, policy, attachment.impl, attachment.detach_temperature)
    return output.transpose(1, 2).contiguous()


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    **options: Any,
) -> Problem:
    """Translate and check the arguments of a call.

    Without a mask, transformers leaves causality to the attention. If there are several queries,
    the first query stands at the first key, and keys after the last query are the unwritten part
    of a static cache. A single query is the newest and sees every key.
    """
    queries = query.shape[2]
    is_causal = is_causal and queries > 1 and mask is None
    if is_causal and key.shape[2] > queries:
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    if bias is not None:
        mask = _with_bias(mask, bias)
    shared = key.shape[1] != query.shape[1]
    folded = _attention.fold(query, key, value, mask, enable_gqa=shared)
    return _attention.check(
        folded.query, folded.key, folded.value, attn_mask=folded.mask, is_causal=is_causal,
        alignment="upper_left", window=None, enable_gqa=shared, **options,
    )  # fmt: skip


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """Return one additive mask: the bias for visible keys, -inf for others."""
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        hidden = mask <= _attention.masked_below(mask.dtype)
        return (bias + mask).masked_fill(hidden, -torch.inf)
    return torch.where(mask, bias, -torch.inf)
