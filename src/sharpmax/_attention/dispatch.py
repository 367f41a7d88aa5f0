"""Take tensors to PyTorch and NumPy arrays to the kernels: the public functions.

Nothing here imports PyTorch before a tensor comes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from sharpmax._attention import arrays
from sharpmax._attention.settings import Alignment, SinkRole
from sharpmax._extras import require
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.normalisers import Normaliser

Implementation = Literal["auto", "reference", "composed", "cpu", "triton"]

Values = TypeVar("Values", "Tensor", "np.ndarray[Any, Any]")

_loaded: dict[str, Any] = {}
"""The module that serves tensors, once there are some."""


def load_tensors() -> Any:
    """Import what serves tensors."""
    if "api" not in _loaded:
        require("torch", extra="torch", what="attention of anything but NumPy arrays")
        _loaded["api"] = importlib.import_module("sharpmax._attention.api")
    return _loaded["api"]


@overload
def attention(
    query: Values,
    key: Values,
    value: Values,
    attn_mask: Values | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    softcap: float | None = ...,
    sink: Values | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[False] = ...,
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: Normaliser | None = ...,
) -> Values: ...
@overload
def attention(
    query: Values,
    key: Values,
    value: Values,
    attn_mask: Values | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    softcap: float | None = ...,
    sink: Values | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[True],
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: Normaliser | None = ...,
) -> tuple[Values, RowStatistics]: ...


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    policy: Policy | None = None,
    softcap: float | None = None,
    sink: Any = None,
    window: int | None = None,
    impl: Implementation = "auto",
    return_statistics: bool = False,
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
    detach_temperature: bool = False,
    normaliser: Normaliser | None = None,
) -> Any:
    """Attend with the inverse temperature that a policy gives each row: softmax(beta e) V.

    A drop-in for `torch.nn.functional.scaled_dot_product_attention`: positional arguments have the
    same order and the same meaning. `functools.partial(sharpmax.attention, policy=...)` can take
    its place in an unmodified model. It takes torch tensors, or NumPy arrays, for which PyTorch
    need not be installed.

    The logits of a row are e = scale q.k, then softcap tanh(e / softcap), then + attn_mask; beta
    multiplies all of that. Only visible keys count in the entropy and in n. A row that sees no key
    gives zeros. The result is exact; memory is linear in the length, except with dropout or a
    normaliser.

    Args:
        query: [..., heads, queries, width]. Leading axes are optional and broadcast.
        key: [..., key heads, keys, width].
        value: [..., key heads, keys, value width].
        attn_mask: broadcasts to [..., heads, queries, keys]. Boolean: True is visible. Floating:
            added to the logits (a bias, ALiBi); entries of -inf, or at or below half of finfo.min,
            hide the key.
        dropout_p: drop weights with this probability, in training and in evaluation.
        is_causal: a query sees no key after its own position.
        scale: the factor of the product; 1/sqrt(width) if None.
        enable_gqa: allow fewer key heads than query heads (grouped-query attention). Keys are not
            copied.
        policy: gives the inverse temperature of each row; None is plain softmax. A parameter with
            one axis has one entry per query head.
        softcap: soft bound of the logits, as in Gemma 2.
        sink: [heads], one additional logit per row whose value is zero, as in gpt-oss.
        window: a query sees only keys at a distance of less than this, on both sides, or only
            earlier keys if `is_causal`.
        impl: "auto" takes the fastest implementation that can serve; a name raises if that one
            cannot. Only "cpu" serves NumPy arrays, without dropout, normalisers and gradients.
        return_statistics: also return the statistics of the untempered rows.
        alignment: the position of query 0 for `is_causal` and `window`: at key 0 ("upper_left", as
            in PyTorch), or such that the last query is at the last key ("lower_right", as in
            decoding with a cache).
        sink_role: "key": the sink is one more key; it counts in the entropy and in n, and beta
            applies to it. "apart": neither.
        detach_temperature: treat beta as a constant in differentiation.
        normaliser: makes the weights from the logits instead of softmax (`sharpmax.normalisers`).
            It excludes a sink and any policy but `Identity`. Only the reference implementation
            serves it, with quadratic memory; statistics are those of the plain logits. A normaliser
            that overrides `forward` takes neither a softcap nor a bias. A normaliser with two maps
            per head has half as many value heads and output heads.

    Returns:
        [..., heads, queries, value width], and `RowStatistics` [..., heads, queries] if asked for
        (float32 at least, without gradient).

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
        NotImplementedError: the implementation asked for by name cannot serve; the message says
            why.

    Example:
        >>> import torch, sharpmax
        >>> from sharpmax.policies import Exponential
        >>> query, key, value = torch.randn(3, 1, 2, 8, 16).unbind()
        >>> sharpmax.attention(query, key, value, is_causal=True, policy=Exponential(1.0)).shape
        torch.Size([1, 2, 8, 16])
        >>> arrays = query.numpy(), key.numpy(), value.numpy()
        >>> sharpmax.attention(*arrays, is_causal=True, policy=Exponential(1.0)).shape
        (1, 2, 8, 16)
    """
    if isinstance(query, np.ndarray):
        serve = arrays.attention
    else:
        serve = (_loaded.get("api") or load_tensors()).attention
    return serve(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        policy,
        softcap,
        sink,
        window,
        impl,
        return_statistics,
        alignment,
        sink_role,
        detach_temperature,
        normaliser,
    )


def attention_statistics(
    query: Values,
    key: Values,
    attn_mask: Values | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sink: Values | None = None,
    window: int | None = None,
    impl: Implementation = "auto",
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
) -> RowStatistics:
    """Measure every row of an attention: its statistics, and with them its entropy.

    The arguments are those of `sharpmax.attention`, without values and without a policy. Memory is
    linear in the length.

    `maximum.amax((0, 2))` of the result, for a batch, is the largest logit of each head, by which
    QK-clip rescales the weights of queries and keys (arXiv 2507.20534).

    Returns:
        `RowStatistics` of the untempered rows, [..., heads, queries], float32 at least, without
        gradient.

    Raises:
        TypeError, ValueError, NotImplementedError: as `sharpmax.attention` does.

    Example:
        >>> import torch, sharpmax
        >>> query = key = torch.zeros(1, 2, 100, 16)
        >>> sharpmax.attention_statistics(query, key).entropy()[0, 0, 0]
        tensor(4.6052)
    """
    if isinstance(query, np.ndarray):
        serve = arrays.attention_statistics
    else:
        serve = (_loaded.get("api") or load_tensors()).attention_statistics
    measured: RowStatistics = serve(
        query,
        key,
        attn_mask,
        is_causal,
        scale,
        enable_gqa,
        softcap,
        sink,
        window,
        impl,
        alignment,
        sink_role,
    )
    return measured
