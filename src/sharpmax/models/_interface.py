"""The functions that transformers calls instead of its own attention."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from sharpmax import _attention
from sharpmax._attention import Problem
from sharpmax.models._attachment import ATTRIBUTE, NOT_ATTACHED, Attachment
from sharpmax.models._config import MASKED, NAME
from sharpmax.models._model_families import IGNORED_ARGUMENTS
from sharpmax.policies import Identity


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
    attachment: Attachment = getattr(module, ATTRIBUTE, NOT_ATTACHED)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)

    def problem() -> Problem:
        return _problem(
            query, key, value, attention_mask, position_bias, causal, dropout=dropout,
            scale=scaling, softcap=softcap, sink=s_aux, sink_role=attachment.sink_role,
        )  # fmt: skip

    def stock(made: Problem | None) -> Tensor:
        if softcap is not None or s_aux is not None:
            # PyTorch's own attention supports neither.
            return _attention.attend(made or problem(), Identity())[0]
        output: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
            is_causal=is_causal, position_bias=position_bias,
        )[0]  # fmt: skip
        return output.transpose(1, 2)

    output = attachment.attend(query.shape[1], problem, stock)
    return output.transpose(1, 2).contiguous(), None


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
