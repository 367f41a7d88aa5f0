"""Check tensors and the other arguments of attention, choose an implementation and call it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sharpmax._attention import problem as problems
from sharpmax._attention import temperature
from sharpmax._attention.impl import composed, cpu, reference, triton
from sharpmax._attention.problem import Problem
from sharpmax._attention.settings import Alignment, SinkRole
from sharpmax._statistics import RowStatistics
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Hard, Identity, Policy

IMPLEMENTATIONS: dict[str, Any] = {
    "cpu": cpu,
    "triton": triton,
    "composed": composed,
    "reference": reference,
}
"""By name, the fastest first. `sharpmax._attention.impl` says what each provides."""

_PLAIN = Identity()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    policy: Policy | None,
    softcap: float | None,
    sink: Tensor | None,
    window: int | None,
    impl: str,
    return_statistics: bool,
    alignment: Alignment,
    sink_role: SinkRole,
    detach_temperature: bool,
    normaliser: Normaliser | None,
) -> Tensor | tuple[Tensor, RowStatistics]:
    """Serve `sharpmax.attention` of tensors."""
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
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    softcap: float | None,
    sink: Tensor | None,
    window: int | None,
    impl: str,
    alignment: Alignment,
    sink_role: SinkRole,
) -> RowStatistics:
    """Serve `sharpmax.attention_statistics` of tensors."""
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
