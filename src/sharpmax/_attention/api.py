"""The public functions: they check, choose an implementation, and call it."""

from __future__ import annotations

from types import ModuleType
from typing import Literal, overload

import torch
from torch import Tensor

from sharpmax._attention import problem as problems
from sharpmax._attention.impl import composed, cpu, reference
from sharpmax._attention.problem import Alignment, Problem, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Hard, Identity, Policy

Implementation = Literal["auto", "reference", "composed", "cpu"]

IMPLEMENTATIONS = {"cpu": cpu, "composed": composed, "reference": reference}
"""By name, the fastest first. Each has `unsupported`, `attend` and `measure`."""


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    policy: Policy | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    enable_gqa: bool = ...,
    impl: Implementation = ...,
    return_statistics: Literal[False] = ...,
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    dropout_p: float = ...,
    normaliser: Normaliser | None = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    policy: Policy | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    enable_gqa: bool = ...,
    impl: Implementation = ...,
    return_statistics: Literal[True],
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    dropout_p: float = ...,
    normaliser: Normaliser | None = ...,
) -> tuple[Tensor, RowStatistics]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    policy: Policy | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    window: int | None = None,
    enable_gqa: bool = False,
    impl: Implementation = "auto",
    return_statistics: bool = False,
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
    detach_temperature: bool = False,
    dropout_p: float = 0.0,
    normaliser: Normaliser | None = None,
) -> Tensor | tuple[Tensor, RowStatistics]:
    """Attention whose rows are as sharp as `policy` says: softmax(beta e) V, exact, linear memory.

    A drop-in for `torch.nn.functional.scaled_dot_product_attention`. The logits of a row are
    e = scale q.k, then softcap tanh(e / softcap), then + mask; beta multiplies all of that. Only
    visible keys count in the entropy and in n. A row that sees no key gives zeros.

    Args:
        query: [batch, heads, queries, width].
        key: [batch, key heads, keys, width].
        value: [batch, key heads, keys, value width].
        policy: gives the inverse temperature of a row. A parameter with one axis has an entry a
            query head. None only with a normaliser.
        mask: broadcasts to [batch, heads, queries, keys]. Boolean: True is visible. Floating: added
            to the logits (a bias, ALiBi); entries of -inf, or at or below half of finfo.min, hide
            the key.
        is_causal: a query sees no key after its own position.
        scale: of the product; 1/sqrt(width) if None.
        softcap: soft bound of the logits, as in Gemma 2.
        sink: [heads], one more logit for each row whose value is zero, as in gpt-oss.
        window: a query sees only keys at a distance of less than this, on both sides, or back in
            time if `is_causal`.
        enable_gqa: there may be fewer key heads than query heads; keys are not copied.
        impl: "auto" takes the fastest that can serve; a name raises if that one cannot.
        return_statistics: also give the statistics of the untempered rows, [batch, heads, queries].
        alignment: where query 0 stands for `is_causal` and `window`: at key 0 ("upper_left", as in
            PyTorch), or so that the last query stands at the last key ("lower_right", as in
            decoding with a cache).
        sink_role: "key": the sink is one more key, which counts in entropy and n and is sharpened
            with them. "apart": it does neither.
        detach_temperature: hold beta constant in differentiation.
        dropout_p: drop weights with this probability, whether training or not.
        normaliser: makes the weights from the logits instead of softmax (`sharpmax.normalisers`);
            then there is neither a policy, unless it is `Identity`, nor a sink. Only the reference
            implementation serves it, quadratic in memory, and the statistics, if asked for, are
            those of the plain logits. One that overrides `forward` takes neither a softcap nor a
            bias. One whose `maps` is 2 has half as many heads of values and of output.

    Returns:
        [batch, heads, queries, value width], and `RowStatistics` if asked for (float32 at least,
        without gradient).

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
        NotImplementedError: the implementation asked for cannot do this; the message says why.

    Example:
        >>> import torch, sharpmax
        >>> from sharpmax.policies import Exponential
        >>> query, key, value = torch.randn(3, 1, 2, 8, 16).unbind()
        >>> sharpmax.attention(query, key, value, policy=Exponential(1.0), is_causal=True).shape
        torch.Size([1, 2, 8, 16])
    """
    _check_rule(policy, normaliser, sink, detach_temperature)
    problem = problems.check(
        query,
        key,
        value,
        mask=mask,
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        sink=sink,
        sink_role=sink_role,
        window=window,
        enable_gqa=enable_gqa,
        dropout=dropout_p,
        maps=1 if normaliser is None else normaliser.maps,
    )
    if normaliser is not None:
        return _attend_normalised(impl, problem, normaliser, return_statistics)
    assert policy is not None
    if isinstance(policy, Hard) and sink is not None and sink_role == "apart":
        raise ValueError("sink_role: expected 'key' with Hard, which no finite sink can withstand")
    chosen = _choose(impl, problem, policy, detach_temperature)
    output, statistics = chosen.attend(problem, policy, detach_temperature)
    policy.check_statistics(statistics)
    return (output, statistics) if return_statistics else output


def attention_statistics(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    window: int | None = None,
    enable_gqa: bool = False,
    impl: Implementation = "auto",
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
) -> RowStatistics:
    """Statistics of every row of an attention, and with them its entropy, in linear memory.

    The arguments are those of `sharpmax.attention`; there are no values and no policy.

    Returns:
        `RowStatistics` of the untempered rows, [batch, heads, queries], float32 at least, without
        gradient.

    Raises:
        TypeError, ValueError, NotImplementedError: as `sharpmax.attention` does.

    Example:
        >>> import torch, sharpmax
        >>> query = key = torch.zeros(1, 2, 100, 16)
        >>> sharpmax.attention_statistics(query, key).entropy()[0, 0, 0]
        tensor(4.6052)
    """
    problem = problems.check(
        query,
        key,
        None,
        mask=mask,
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        sink=sink,
        sink_role=sink_role,
        window=window,
        enable_gqa=enable_gqa,
        dropout=0.0,
    )
    with torch.no_grad():
        statistics: RowStatistics = _choose(impl, problem, None, True).measure(problem)
    return statistics


def _check_rule(policy: object, normaliser: object, sink: object, detached: bool) -> None:
    """One of policy and normaliser, and what goes with a policy alone."""
    if normaliser is None:
        if not isinstance(policy, Policy):
            raise TypeError(f"policy: expected a sharpmax policy, got {policy!r}")
        return
    if not isinstance(normaliser, Normaliser):
        raise TypeError(f"normaliser: expected a sharpmax normaliser, got {normaliser!r}")
    if not isinstance(policy, Identity | None):
        raise ValueError(
            f"policy, normaliser: expected one of the two, got {policy!r} and {normaliser!r}; "
            "sharpmax.normalisers.Softmax takes a policy"
        )
    if sink is not None:
        raise ValueError("sink: expected None with a normaliser, which has no place for it")
    if detached:
        raise ValueError(
            "detach_temperature: expected False with a normaliser; "
            "sharpmax.normalisers.Softmax has an option of that name"
        )


def _attend_normalised(
    impl: str, problem: Problem, normaliser: Normaliser, return_statistics: bool
) -> Tensor | tuple[Tensor, RowStatistics]:
    _check_name(impl)
    if impl not in ("auto", "reference"):
        raise NotImplementedError(
            f"impl={impl!r}: normaliser: only the reference writes the weights out for it"
        )
    output = reference.attend_normalised(problem, normaliser)
    if not return_statistics:
        return output
    with torch.no_grad():
        return output, reference.measure(problem)


def choice(impl: str, problem: Problem, policy: Policy, detach_temperature: bool) -> str:
    """The name of the implementation that serves a problem."""
    chosen = _choose(impl, problem, policy, detach_temperature)
    return next(name for name, module in IMPLEMENTATIONS.items() if module is chosen)


def _choose(
    impl: str, problem: Problem, policy: Policy | None, detach_temperature: bool
) -> ModuleType:
    _check_name(impl)
    if impl == "auto":
        for candidate in IMPLEMENTATIONS.values():
            if candidate.unsupported(problem, policy, detach_temperature) is None:
                return candidate
    chosen = IMPLEMENTATIONS[impl]
    if reason := chosen.unsupported(problem, policy, detach_temperature):
        raise NotImplementedError(f"impl={impl!r}: {reason}")
    return chosen


def _check_name(impl: str) -> None:
    if impl != "auto" and impl not in IMPLEMENTATIONS:
        expected = ", ".join(["auto", *IMPLEMENTATIONS])
        raise ValueError(f"impl: expected one of {expected}, got {impl!r}")
