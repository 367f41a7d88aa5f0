"""The functions that transformers calls instead of its own attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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

NAME = "sharpmax"  # of the attention and of its masks; transformers matches substrings of names
# For models with eager attention, where the mask alone decides what is visible: some do not say
# that they are causal, and some add biases to their masks.
MASKED = f"{NAME}_masked"
NAMES = (NAME, MASKED)
ATTRIBUTE = "_sharpmax"  # holds the `Attachment` of a module: registries are process-wide
STOCK = "stock sdpa"  # what the status shows as implementation of an unchanged layer


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


# Receives the index of a layer and its problem, without values; it must not change or keep it.
Observe = Callable[[int, Problem], None]


def statistics_to(recorder: Recorder) -> Observe:
    """Return a function that measures each problem for a recorder."""
    return lambda layer, problem: recorder.record(layer, _attention.measure(problem))


@dataclass(eq=False)
class Attachment:
    """What an attention module carries while it is sharpened."""

    layer: int
    rule: Rule
    heads: int | None = None  # on all ranks, if known
    local: Rule | None = None  # what the heads of this rank get, under tensor parallelism
    impl: Implementation = "auto"
    detach_temperature: bool = False
    sink_role: SinkRole = "key"
    observe: Observe | None = None
    used: str | None = None  # implementation of the first call outside of compilation

    def attend(self, problem: Problem, policy: Policy) -> Tensor:
        output, _ = _attention.attend(problem, policy, self.impl, self.detach_temperature)
        return output.transpose(1, 2).contiguous()


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
    """Compute attention by the rule on the module, [batch, queries, heads, value width], and None.

    The arguments are those of transformers. A module without a policy gets PyTorch's own attention.
    """
    for name, argument in kwargs.items():
        if argument is not None and name not in IGNORED_ARGUMENTS:
            raise NotImplementedError(
                f"{name}: {type(module).__name__} passes this argument to its attention, and "
                "sharpened attention does not support it; leave this layer unsharpened"
            )
    if output_attentions and not torch.compiler.is_compiling():
        warnings.warn(
            "output_attentions: sharpened attention returns None instead of weights; use "
            "sharpmax.models.record for the statistics of every row",
            stacklevel=2,
        )
    attachment: Attachment = getattr(module, ATTRIBUTE, _NOT_ATTACHED)
    rule = (attachment.local if query.shape[1] != attachment.heads else None) or attachment.rule
    # PyTorch's own attention supports neither.
    beyond_sdpa = softcap is not None or s_aux is not None
    problem = None
    if beyond_sdpa or attachment.observe is not None or rule.policy is not None:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        options = {"scale": scaling, "softcap": softcap, "sink": s_aux, "dropout": dropout}
        problem = _problem(
            query, key, value, attention_mask, position_bias, bool(is_causal),
            sink_role=attachment.sink_role, **options,
        )  # fmt: skip
        if attachment.observe is not None:
            with torch.no_grad():
                attachment.observe(attachment.layer, replace(problem, value=None, dropout=0.0))

    def stock() -> Tensor:
        if beyond_sdpa and problem is not None:
            return _NOT_ATTACHED.attend(problem, Identity())
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
        output = attachment.attend(problem, rule.policy)
        if rule.chosen is not None:
            output = torch.where(rule.chosen.to(output.device)[:, None], output, stock())
    if rule.gain is not None:
        output = output * rule.gain.to(output)[:, None]
    return output, None


def masked_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """Compute `attention_forward`, where every key is visible if there is no mask."""
    kwargs["is_causal"] = False
    return attention_forward(*args, **kwargs)


def register() -> None:
    """Register both attentions and their masks with transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(MASKED, masked_attention_forward)
    AttentionMaskInterface.register(MASKED, eager_mask)


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    **options: Any,
) -> Problem:
    """Translate and check the arguments of a call."""
    # Without a mask, transformers leaves causality to the attention. If there are several queries,
    # the first query stands at the first key, and keys after the last query are the unwritten part
    # of a static cache. A single query is the newest and sees every key.
    queries = query.shape[2]
    is_causal = is_causal and queries > 1 and mask is None
    if is_causal and key.shape[2] > queries:
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    if bias is not None and mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > _attention.masked_below(mask.dtype)
        bias = torch.where(seen, bias if mask.dtype == torch.bool else bias + mask, -torch.inf)
    mask = mask if bias is None else bias
    shared = key.shape[1] != query.shape[1]
    folded = _attention.fold(query, key, value, mask, enable_gqa=shared)
    return _attention.check(
        folded.query, folded.key, folded.value, attn_mask=folded.mask, is_causal=is_causal,
        alignment="upper_left", window=None, enable_gqa=shared, **options,
    )  # fmt: skip
