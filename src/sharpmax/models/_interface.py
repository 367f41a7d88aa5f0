"""The one door: the function that transformers calls in the place of its own attention."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from sharpmax._attention import api, attention, attention_statistics
from sharpmax._attention import problem as problems
from sharpmax._attention.api import Implementation
from sharpmax._attention.problem import Problem, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.models._rule import Rule
from sharpmax.policies import Identity, Policy

NAME = "sharpmax"
"""Of the attention and of its masks. Plain, because transformers looks for parts of names."""

MASKED = f"{NAME}_masked"
"""The same for models that use eager attention, where all that hides a key is in the mask.

Not all of these can do otherwise: some tell nobody that they are causal, some add to their masks.
"""

NAMES = (NAME, MASKED)

ATTRIBUTE = "_sharpmax"
"""Of an attention module: its `Attachment`. Registries are process-wide, modules are not."""

STOCK = "stock sdpa"
"""What the status calls a layer that is left alone."""

# Arguments that say nothing which the mask, or whoever called, has not seen to already.
_HARMLESS = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "seq_idx",
        # The window is in the mask already.
        "sliding_window",
        "use_cache",
    }
)


@runtime_checkable
class Recorder(Protocol):
    """Something that is told about every row that passes the door, and changes nothing.

    `sharpmax.models.record` puts it there.
    """

    def record(self, layer: int, statistics: RowStatistics) -> None:
        """Take the statistics of the untempered rows of a layer, [batch, heads, queries].

        Args:
            layer: the index of the layer, as in the status.
            statistics: single precision at least, without gradient. Rows of padding are among
                them; those that see no key have a count of 0.
        """


@runtime_checkable
class Observer(Protocol):
    """A recorder that chooses itself which rows it measures, and what of them."""

    def observe(self, layer: int, problem: Problem) -> None:
        """Take the problem of a layer: its queries, keys and all that hides or shifts logits.

        Args:
            layer: the index of the layer, as in the status.
            problem: without values. Nothing of it may be changed, nor kept after the call.
        """


@dataclass(eq=False)
class Attachment:
    """What an attention module carries while it is sharpened.

    Attributes:
        layer: the index of the layer.
        rule: for all heads of the layer.
        heads: how many these are, where it is known.
        local: the rule for the heads of this rank, under tensor parallelism.
        impl: as in `sharpmax.attention`.
        detach_temperature: as in `sharpmax.attention`.
        sink_role: as in `sharpmax.attention`.
        recorder: is told about every row, or None.
        used: the implementation that served the first call outside of compilation.
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
        """The rule for as many heads as a call has."""
        return self.rule if self.local is None or heads == self.heads else self.local


class _Call(NamedTuple):
    """The arguments of transformers that mean something."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    scaling: float | None
    is_causal: bool | None
    softcap: float | None
    sink: Tensor | None
    position_bias: Tensor | None


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
    """Attention as sharp as the rule on the module says; the arguments are those of transformers.

    A module without a rule, or with one that leaves it alone, gets PyTorch's own attention.

    Returns:
        The output, [batch, queries, heads, value width], and None: there are no weights to show.

    Raises:
        NotImplementedError: for an argument whose meaning would be lost.
    """
    _refuse(module, kwargs)
    if output_attentions and not torch.compiler.is_compiling():
        warnings.warn(
            "output_attentions: sharpened attention makes no weights, so None is given for them; "
            "sharpmax.models.record tells the statistics of every row",
            stacklevel=2,
        )
    call = _Call(
        module, query, key, value, attention_mask, dropout, scaling, is_causal, softcap, s_aux,
        position_bias,
    )  # fmt: skip
    attachment: Attachment | None = getattr(module, ATTRIBUTE, None)
    if attachment is None:
        return _stock(call), None
    rule = attachment.rule_for(query.shape[1])
    if attachment.recorder is not None:
        _tell(attachment.recorder, call, attachment)
    if rule.policy is None:
        output = _stock(call)
    else:
        output = _sharp(call, rule.policy, attachment)
        if rule.chosen is not None:
            output = torch.where(rule.chosen.to(output.device)[:, None], output, _stock(call))
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
    """`attention_forward` where no mask means that nothing is hidden."""
    kwargs["is_causal"] = False
    return attention_forward(module, query, key, value, attention_mask, **kwargs)


def register() -> None:
    """Make the door known to transformers: the attention and its masks, under the same names."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(MASKED, masked_attention_forward)
    AttentionMaskInterface.register(MASKED, eager_mask)


def _refuse(module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Raise for arguments whose meaning would be lost."""
    for name, value in kwargs.items():
        if value is not None and name not in _HARMLESS:
            raise NotImplementedError(
                f"{name}: {type(module).__name__} gives its attention this argument, which "
                "sharpened attention does not know, and leaving it out might change the meaning"
            )


def _tell(recorder: Recorder | Observer, call: _Call, attachment: Attachment) -> None:
    (query, key, _), options = _translated(call, attachment.sink_role)
    if isinstance(recorder, Observer):
        problem = problems.check(
            query, key, None, alignment="upper_left", window=None, dropout=0.0, **options
        )
        with torch.no_grad():
            recorder.observe(attachment.layer, problem)
    else:
        measured = attention_statistics(query, key, impl=attachment.impl, **options)
        recorder.record(attachment.layer, measured)


def _stock(call: _Call) -> Tensor:
    """The attention that nothing is done to, by the fastest way that knows every argument."""
    if call.softcap is not None or call.sink is not None:
        # PyTorch's own has neither.
        return _attend(call, Identity(), Attachment(0, Rule()))
    output: Tensor = sdpa_attention_forward(
        call.module,
        call.query,
        call.key,
        call.value,
        call.mask,
        dropout=call.dropout,
        scaling=call.scaling,
        is_causal=call.is_causal,
        position_bias=call.position_bias,
    )[0]
    return output


def _sharp(call: _Call, policy: Policy, attachment: Attachment) -> Tensor:
    if attachment.used is None and not torch.compiler.is_compiling():
        (query, key, value), options = _translated(call, attachment.sink_role)
        problem = problems.check(
            query, key, value, alignment="upper_left", window=None, dropout=call.dropout, **options
        )
        attachment.used = api.choice(
            attachment.impl, problem, policy, attachment.detach_temperature
        )
    return _attend(call, policy, attachment)


def _attend(call: _Call, policy: Policy, attachment: Attachment) -> Tensor:
    tensors, options = _translated(call, attachment.sink_role)
    output: Tensor = attention(
        *tensors,
        policy=policy,
        impl=attachment.impl,
        detach_temperature=attachment.detach_temperature,
        dropout_p=call.dropout,
        **options,
    )
    return output.transpose(1, 2).contiguous()


def _translated(
    call: _Call, sink_role: SinkRole
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """Query, key and value, and the options of `sharpmax.attention` that say which rows these are.

    Where there is no mask, transformers leaves causality to the attention: with more than one query
    the first of them stands at the first key, and what lies behind the last one is the unwritten
    part of a static cache. A single query is the newest and sees every key.
    """
    key, value, mask, bias = call.key, call.value, call.mask, call.position_bias
    queries = call.query.shape[2]
    is_causal = call.is_causal
    if is_causal is None:
        is_causal = getattr(call.module, "is_causal", True)
    is_causal = queries > 1 and mask is None and bool(is_causal)
    if is_causal and key.shape[2] > queries:
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    if bias is not None:
        mask = _with_bias(mask, bias)
    options = {
        "attn_mask": mask,
        "is_causal": is_causal,
        "scale": call.scaling,
        "softcap": call.softcap,
        "sink": call.sink,
        "sink_role": sink_role,
        "enable_gqa": key.shape[1] != call.query.shape[1],
    }
    return (call.query, key, value), options


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """One additive mask: the bias where a key is visible, -inf where it is not."""
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        hidden = mask <= problems.masked_below(mask.dtype)
        return (bias + mask).masked_fill(hidden, -torch.inf)
    return torch.where(mask, bias, -torch.inf)
