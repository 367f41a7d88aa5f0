"""Check the arguments of attention, choose an implementation and call it."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from sharpmax._attention import problem as problems
from sharpmax._attention import temperature
from sharpmax._attention.impl import composed, cpu, reference, triton
from sharpmax._attention.problem import Alignment, Problem, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Hard, Identity, Policy

Implementation = Literal["auto", "reference", "composed", "cpu", "triton"]

IMPLEMENTATIONS: dict[str, Any] = {
    "cpu": cpu,
    "triton": triton,
    "composed": composed,
    "reference": reference,
}
"""By name, the fastest first. `sharpmax._attention.impl` says what each provides."""

_PLAIN = Identity()


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[False] = ...,
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: Normaliser | None = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    policy: Policy | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    window: int | None = ...,
    impl: Implementation = ...,
    return_statistics: Literal[True],
    alignment: Alignment = ...,
    sink_role: SinkRole = ...,
    detach_temperature: bool = ...,
    normaliser: Normaliser | None = ...,
) -> tuple[Tensor, RowStatistics]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    policy: Policy | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    window: int | None = None,
    impl: Implementation = "auto",
    return_statistics: bool = False,
    alignment: Alignment = "upper_left",
    sink_role: SinkRole = "key",
    detach_temperature: bool = False,
    normaliser: Normaliser | None = None,
) -> Tensor | tuple[Tensor, RowStatistics]:
    """Attend with the inverse temperature that a policy gives each row: softmax(beta e) V.

    A drop-in for `torch.nn.functional.scaled_dot_product_attention`: positional arguments have the
    same order and the same meaning. `functools.partial(sharpmax.attention, policy=...)` can take
    its place in an unmodified model.

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
            cannot.
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
    """
    if policy is None and normaliser is None:
        policy = _PLAIN
    _check_rule(policy, normaliser, sink, detach_temperature)
    maps = 1 if normaliser is None else normaliser.maps
    folded = problems.fold(query, key, value, attn_mask, enable_gqa=enable_gqa, maps=maps)
    problem = problems.check(
        folded.query,
        folded.key,
        folded.value,
        attn_mask=folded.mask,
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        sink=sink,
        sink_role=sink_role,
        window=window,
        enable_gqa=enable_gqa,
        dropout=dropout_p,
        maps=maps,
    )
    if normaliser is not None:
        output, statistics = _attend_normalised(impl, problem, normaliser, return_statistics)
    else:
        assert policy is not None
        output, statistics = attend(
            problem, policy, impl, detach_temperature, measured=return_statistics
        )
    output = folded.unfold(output)
    if not return_statistics:
        return output
    assert statistics is not None
    return output, RowStatistics(*(folded.unfold(entry) for entry in statistics))


def attention_statistics(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sink: Tensor | None = None,
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
    folded = problems.fold(query, key, None, attn_mask, enable_gqa=enable_gqa)
    problem = problems.check(
        folded.query,
        folded.key,
        None,
        attn_mask=folded.mask,
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
    statistics = measure(problem, impl)
    return RowStatistics(*(folded.unfold(entry) for entry in statistics))


def attend(
    problem: Problem,
    policy: Policy,
    impl: str = "auto",
    detach_temperature: bool = False,
    measured: bool = False,
) -> tuple[Tensor, RowStatistics | None]:
    """Compute the output of a checked problem, and its row statistics if `measured`."""
    policy = policy.current()
    if isinstance(policy, Hard) and problem.sink is not None and not problem.sink_counted:
        raise ValueError("sink_role: expected 'key' with Hard, since beta is infinite")
    chosen = IMPLEMENTATIONS[choose(impl, problem, policy)]
    return temperature.attend(chosen, problem, policy, detach_temperature, measured)


def measure(problem: Problem, impl: str = "auto") -> RowStatistics:
    """Compute the statistics of the untempered rows of a checked problem, without gradient."""
    with torch.no_grad():
        statistics: RowStatistics = IMPLEMENTATIONS[choose(impl, problem, None)].measure(problem)
    return statistics


def _check_rule(policy: object, normaliser: object, sink: object, detached: bool) -> None:
    """Check that there is a policy or a normaliser, and what only a policy allows."""
    if normaliser is None:
        if not isinstance(policy, Policy):
            raise TypeError(f"policy: expected a sharpmax policy or None, got {policy!r}")
        return
    if not isinstance(normaliser, Normaliser):
        raise TypeError(f"normaliser: expected a sharpmax normaliser, got {normaliser!r}")
    if not isinstance(policy, Identity | None):
        raise ValueError(
            f"policy, normaliser: expected one of the two, got {policy!r} and {normaliser!r}; "
            "sharpmax.normalisers.Softmax takes a policy"
        )
    if sink is not None:
        raise ValueError("sink: expected None with a normaliser")
    if detached:
        raise ValueError(
            "detach_temperature: expected False with a normaliser; "
            "sharpmax.normalisers.Softmax has an option of that name"
        )


def _attend_normalised(
    impl: str, problem: Problem, normaliser: Normaliser, return_statistics: bool
) -> tuple[Tensor, Any]:
    _check_name(impl)
    if impl not in ("auto", "reference"):
        raise NotImplementedError(
            f"impl={impl!r}: normaliser: only the reference implementation serves normalisers"
        )
    output = reference.attend_normalised(problem, normaliser)
    if not return_statistics:
        return output, ()
    with torch.no_grad():
        return output, reference.measure(problem)


def choose(impl: str, problem: Problem, policy: Policy | None) -> str:
    """Choose the implementation for a checked problem, make it ready, and return its name.

    "auto" passes over one that cannot be made ready, such as kernels that fail to compile. The
    failure is remembered, so this happens once per process.
    """
    _check_name(impl)
    for name in IMPLEMENTATIONS if impl == "auto" else [impl]:
        if impl == "auto" and name == "triton" and problem.query.device.type == "cpu":
            continue  # an interpreter, for tests
        candidate = IMPLEMENTATIONS[name]
        reason = candidate.unsupported(problem, policy)
        if reason is None and hasattr(candidate, "prepare"):
            reason = candidate.prepare()
        if reason is None:
            return name
    raise NotImplementedError(f"impl={impl!r}: {reason}")


def _check_name(impl: str) -> None:
    if impl != "auto" and impl not in IMPLEMENTATIONS:
        expected = ", ".join(["auto", *IMPLEMENTATIONS])
        raise ValueError(f"impl: expected one of {expected}, got {impl!r}")
