"""Implementations to compare `sharpmax.attention` with: what people use without a kernel.

Query, key, value and output are [batch, heads, length, width].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from entmax import entmax_bisect
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from sharpmax import attention_statistics
from sharpmax.policies import Paper, Policy

__all__ = ["entmax_attention", "flex_second_pass", "textbook_attention"]


def textbook_attention(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False
) -> Tensor:
    """Compute attention as the paper's Figure 4 does, step by step, over all scores at once.

    It has the same sequence of array operations as the published code, in PyTorch: softmax, its
    entropy with 1e-9 inside the logarithm, the polynomial, softmax again.

    Example:
        >>> query, key, value = torch.zeros(3, 1, 1, 4, 8).unbind()
        >>> textbook_attention(query, key, value).shape
        torch.Size([1, 1, 4, 8])
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    plain = torch.softmax(scores, dim=-1)
    entropy = -(plain * torch.log(plain + Paper.GUARD)).sum(dim=-1, keepdim=True)
    polynomial = torch.zeros_like(entropy)
    for coefficient in Paper.COEFFICIENTS:
        polynomial = polynomial * entropy + coefficient
    beta = torch.where(entropy > Paper.THRESHOLD, polynomial.clamp(min=1.0), 1.0)
    return torch.softmax(beta * scores, dim=-1) @ value


def flex_second_pass(query: Tensor, key: Tensor, policy: Policy) -> Callable[..., Tensor]:
    """Return the second pass alone, as FlexAttention can express it, with beta given per row.

    FlexAttention cannot measure a row before weighing it, so the first pass runs here, once. The
    function is compiled whole: it raises on anything that the compiler cannot take.

    Returns:
        A function of this query, this key and a value.
    """
    measured = attention_statistics(query, key)
    beta = torch.as_tensor(policy.over_queries().inverse_temperature(measured))

    def sharpened(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, _: Tensor) -> Tensor:
        return score * beta[batch, head, row]

    compiled: Any = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    return lambda query, key, value: compiled(query, key, value, score_mod=sharpened)


def entmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute sparse attention: 1.5-entmax by bisection, over all scores at once.

    Example:
        >>> query, key, value = torch.zeros(3, 1, 1, 4, 8).unbind()
        >>> entmax_attention(query, key, value).shape
        torch.Size([1, 1, 4, 8])
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights: Tensor = entmax_bisect(scores, alpha=1.5, dim=-1)
    return weights @ value
