"""One case through an implementation and through the oracle: which rows are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import sharpmax
from campaign import oracle
from campaign.cases import Case, library_policy

_SLACK = 64
"""Roundings that a row may gather, beside the error of the yardstick."""

_SOLVE = 1e-3
"""What the documented tolerance of EntropyTarget, 1e-4 nats, may move an output of size 1."""


@dataclass
class Outcome:
    """What a case showed.

    Attributes:
        rows: how many rows, or gradients, were compared.
        wrong: how many of them are wrong.
        undecided: rows that their precision cannot decide: rounding alone may move them by more
            than the size of the values, or across a kink of the policy.
        worst: the largest error over its tolerance.
        reason: the first thing that was wrong.
    """

    rows: int = 0
    wrong: int = 0
    undecided: int = 0
    worst: float = 0.0
    reason: str = ""
    case: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, error: Tensor, tolerance: Tensor, decided: Tensor) -> None:
        """Count the entries of `error` that are decided and above their tolerance."""
        ratio = torch.where(error <= tolerance, error / tolerance.clamp(min=1e-300), math.inf)
        ratio = torch.where(error <= tolerance, ratio, error / tolerance.clamp(min=1e-300))
        ratio = ratio.nan_to_num(nan=math.inf, posinf=math.inf)[decided]
        bad = int((ratio > 1).sum())
        if bad and not self.reason:
            self.reason = f"{what}: {bad} of {ratio.numel()} wrong, {float(ratio.max()):.3g} times"
        self.rows += ratio.numel()
        self.wrong += bad
        self.undecided += int((~decided).sum())
        if ratio.numel():
            self.worst = max(self.worst, float(ratio.max()))


def check(case: Case, impl: str) -> Outcome:
    """Run a case with one implementation and compare it with the oracle."""
    outcome = Outcome()
    if case.kind == "gradient":
        _check_gradients(case, impl, outcome)
    else:
        _check_rows(case, impl, outcome)
    if outcome.wrong:
        outcome.case = case.describe()
    return outcome


def _check_rows(case: Case, impl: str, outcome: Outcome) -> None:
    options = dict(case.options)
    with torch.no_grad():
        if case.kind == "statistics":
            output = None
            measured = sharpmax.attention_statistics(case.query, case.key, impl=impl, **options)
        else:
            output, measured = sharpmax.attention(
                case.query,
                case.key,
                case.value,
                policy=library_policy(case.policy),
                impl=impl,
                return_statistics=True,
                **options,
            )
        exact, coarse = (_ask(case, dtype) for dtype in (torch.float64, _precision(case)))
    epsilon = torch.finfo(_precision(case)).eps
    reach = _reach(case)
    alive = torch.isfinite(exact.entropy)
    decided = torch.ones_like(alive)
    tolerance = _SLACK * epsilon * (1.0 + reach) + 8.0 * _distance(coarse.entropy, exact.entropy)
    outcome.add(
        "count",
        (measured.count - exact.count).abs().double(),
        0.5 * torch.ones_like(tolerance),
        decided,
    )
    outcome.add("entropy", _distance(measured.entropy(), exact.entropy), tolerance, decided)
    outcome.add(
        "maximum",
        _distance(measured.maximum, exact.maximum),
        _SLACK * epsilon * reach + 1e-300,
        decided,
    )
    if output is None:
        return
    largest = _largest(case.value)
    beta = exact.beta.nan_to_num(nan=1.0, posinf=1.0)
    rounding = _SLACK * epsilon * (1.0 + beta * reach) * largest
    error = _distance(output, exact.output).amax(-1) if output.shape[-1] else rounding * 0
    tolerance = rounding + 8.0 * _distance(coarse.output, exact.output).amax(-1)
    if case.policy[0] == "entropy_target":
        tolerance = tolerance + _SOLVE * largest
    tolerance = tolerance.nan_to_num(nan=math.inf) + 2 * torch.finfo(output.dtype).eps * largest
    decided = (tolerance <= largest) & (exact.margin > _SLACK * epsilon * (1.0 + reach)) | ~alive
    outcome.add("output", error, tolerance, decided)


def _check_gradients(case: Case, impl: str, outcome: Outcome) -> None:
    exact, answer = _gradients_of_oracle(case, torch.float64)
    coarse, _ = _gradients_of_oracle(case, _precision(case))
    margin, beta = answer.margin, answer.beta
    epsilon = torch.finfo(_precision(case)).eps
    if not bool((margin > 1e4 * epsilon).all()):
        outcome.undecided += len(exact)
        return
    ours = _gradients_of(case, impl)
    for name, gradient in exact.items():
        # Relative to the terms that a gradient is made of: they may cancel.
        size = float(gradient.abs().max()) if gradient.numel() else 0.0
        size = max(size, _terms(case, beta))
        spread = float(_distance(coarse[name], gradient).max()) if gradient.numel() else 0.0
        tolerance = torch.tensor(8 * spread + 4e3 * epsilon * size)
        error = _distance(ours[name], gradient)
        error = error.max() if error.numel() else torch.tensor(0.0)
        decided = torch.tensor(bool(tolerance <= size))
        outcome.add(name, error[None], tolerance[None], decided[None])


def _terms(case: Case, beta: Tensor) -> float:
    """The size of the terms of a gradient: beta scale |k| |v| and its like."""
    scale = case.options["scale"]
    scale = case.query.shape[3] ** -0.5 if scale is None else scale
    sharpest = float(beta.detach().max()) if beta.numel() else 1.0
    return max(1.0, sharpest * scale * max(_largest(case.key), _largest(case.query))) * _largest(
        case.value
    )


def _leaves(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything that a gradient is wanted for, as leaves of a graph."""
    mask = case.options.get("attn_mask")
    found: dict[str, Tensor] = {"query": case.query, "key": case.key, "value": case.value}
    if mask is not None and mask.is_floating_point():
        found["attn_mask"] = mask
    if "sink" in case.options:
        found["sink"] = case.options["sink"]
    for name, number in case.policy[1].items():
        if name in ("beta", "reference", "strength", "scale", "target"):
            found[f"policy.{name}"] = torch.as_tensor(number, dtype=torch.float64)
    return {
        name: (t if name.startswith("policy") else t.to(dtype)).detach().clone().requires_grad_()
        for name, t in found.items()
    }


def _gradients_of(case: Case, impl: str) -> dict[str, Tensor]:
    leaves = _leaves(case, case.query.dtype)
    options = dict(case.options) | {n: leaves[n] for n in ("attn_mask", "sink") if n in leaves}
    name, given = case.policy
    learned = {n: leaves.get(f"policy.{n}", v) for n, v in given.items()}
    output = sharpmax.attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        policy=library_policy((name, learned)),
        impl=impl,
        **options,
    )
    return _backward(output, leaves)


def _gradients_of_oracle(case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], oracle.Answer]:
    leaves = _leaves(case, dtype)
    name, given = case.policy
    learned = {n: leaves.get(f"policy.{n}", v) for n, v in given.items()}
    answer = oracle.attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        (name, learned),
        **_oracle_options(case, leaves, dtype),
        detach_temperature=case.options["detach_temperature"],
    )
    return _backward(answer.output, leaves), answer


def _backward(output: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    probe = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    names = list(leaves)
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        (output * probe.to(output.dtype)).sum(), [leaves[n] for n in names], allow_unused=True
    )
    return {
        name: torch.zeros_like(leaves[name]) if gradient is None else gradient
        for name, gradient in zip(names, found, strict=True)
    }


def _ask(case: Case, dtype: torch.dtype) -> oracle.Answer:
    tensors = [tensor.to(dtype) for tensor in (case.query, case.key, case.value)]
    return oracle.attention(*tensors, case.policy, **_oracle_options(case, {}, dtype))


def _oracle_options(case: Case, leaves: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Any]:
    given = case.options
    names = ("is_causal", "alignment", "window", "softcap", "scale", "sink_role")
    options = {name: given[name] for name in names if name in given}
    if "sink" in given:
        options["sink"] = leaves.get("sink", given["sink"]).to(dtype)
    mask = given.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        hidden = mask <= 0.5 * torch.finfo(mask.dtype).min
        mask = leaves.get("attn_mask", mask).to(dtype).masked_fill(hidden, -math.inf)
    if mask is not None:
        options["mask"] = mask
    return options


def _precision(case: Case) -> torch.dtype:
    return torch.float64 if case.query.dtype == torch.float64 else torch.float32


def _reach(case: Case) -> Tensor:
    """How large the terms of a logit of each row are at most: its rounding is relative to that."""
    scale = case.options["scale"]
    scale = case.query.shape[3] ** -0.5 if scale is None else scale
    key = case.key.double().nan_to_num(0, 0, 0).abs()
    key = key.amax(2) if key.shape[2] else key.sum(2)
    group = case.query.shape[1] // max(case.key.shape[1], 1)
    query = case.query.double().nan_to_num(0, 0, 0).abs()
    terms = scale * (query * key.repeat_interleave(group, 1)[:, :, None]).sum(-1)
    mask = case.options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        terms = terms + float(
            mask.double().masked_fill(mask < -1e4, 0).abs().max() if mask.numel() else 0
        )
    if "sink" in case.options:
        terms = terms + float(case.options["sink"].double().nan_to_num(0, 0, 0).abs().max())
    return terms


def _largest(value: Tensor) -> float:
    finite = value.double()[torch.isfinite(value)].abs()
    return float(finite.max()) if finite.numel() else 1.0


def _distance(values: Tensor, exact: Tensor) -> Tensor:
    """Distance, in double precision; 0 where both are NaN or the same infinity."""
    values, exact = values.double(), exact.double()
    same = (torch.isnan(values) & torch.isnan(exact)) | (values == exact)
    return torch.where(same, 0.0, (values - exact).abs())
