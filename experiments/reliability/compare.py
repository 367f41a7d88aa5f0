"""One case through every implementation and through the oracle: which rows are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import sharpmax
from experiments.reliability import oracle
from experiments.reliability.cases import Case, library_policy
from experiments.reliability.odd import call_disguised
from sharpmax._attention.api import IMPLEMENTATIONS

__all__ = ["Outcome", "check"]

# Options come as dictionaries, and names of implementations as they are registered.
_attention: Any = sharpmax.attention
_attention_statistics: Any = sharpmax.attention_statistics

_SLACK = 64
"""Roundings that a row may gather, beside the error of the yardstick."""

_SOLVE = 1e-3
"""What the documented tolerance of EntropyTarget, 1e-4 nats, may move an output of size 1."""

_SOLVED = 1e-4
"""That tolerance. Where the entropy hardly falls with beta it leaves beta open, and with it the
share of a sink that stands apart."""


@dataclass
class Outcome:
    """The result of comparing a case.

    Attributes:
        rows: how many rows, or gradients, were compared.
        wrong: how many of them are wrong.
        undecided: rows that their precision cannot decide: rounding alone may move them by more
            than the size of the values, or across a kink of the policy.
        worst: the largest error over its tolerance.
        refused: why the implementation does not serve the case; empty if it does.
        reason: the first thing that was wrong.
    """

    rows: int = 0
    wrong: int = 0
    undecided: int = 0
    worst: float = 0.0
    refused: str = ""
    reason: str = ""

    def add(self, what: str, error: Tensor, tolerance: Tensor, decided: Tensor) -> None:
        """Count the decided entries of `error` and those above their tolerance."""
        ratio = error / tolerance.clamp(min=1e-300)
        ratio = torch.where(error == 0, 0.0, ratio).nan_to_num(nan=math.inf)[decided]
        bad = int((ratio > 1).sum())
        largest = float(ratio.max()) if ratio.numel() else 0.0
        if bad and not self.reason:
            self.reason = f"{what}: {bad} of {ratio.numel()} wrong, {largest:.3g} times"
        self.rows = max(self.rows, ratio.numel())
        self.wrong += bad
        self.undecided += int((~decided).sum())
        self.worst = max(self.worst, largest)


def check(
    case: Case, implementations: Sequence[str] = tuple(IMPLEMENTATIONS)
) -> dict[str, Outcome]:
    """Compare implementations with the oracle on a case.

    Args:
        case: The problem.
        implementations: Their names.

    Returns:
        One outcome per implementation. Any exception but a refusal counts as wrong.

    Example:
        >>> from experiments.reliability.cases import make_case
        >>> outcome = check(make_case(17, 0), ["reference"])["reference"]
        >>> outcome.rows > 0, outcome.wrong
        (True, 0)
    """
    wanted = _Gradients(case) if case.kind == "gradient" else _Rows(case)
    found = {}
    for name in implementations:
        outcome = found[name] = Outcome()
        try:
            wanted.compare(name, outcome)
        except NotImplementedError as refusal:
            outcome.refused = str(refusal)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
            if f'NotImplementedError("impl={name!r}: ' in str(error):  # inside a compiled call
                outcome.refused = str(error)
            else:
                outcome.wrong, outcome.reason = 1, f"{type(error).__name__}: {error}"
    return found


class _Rows:
    """What the rows of a case must be, and how far they may be from it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        precision = _precision(case)
        with torch.no_grad():
            exact = _ask(case, torch.float64)
            coarse = exact if precision == torch.float64 else _ask(case, precision)
        epsilon, reach = torch.finfo(precision).eps, _reach(case)
        spread = _distance(coarse.entropy, exact.entropy)
        self.exact = exact
        self.alive = torch.isfinite(exact.entropy)
        self.entropy_tolerance = _SLACK * epsilon * (1.0 + reach) + 8.0 * spread
        # Below the smallest normal number, rounding is absolute.
        self.maximum_tolerance = _SLACK * epsilon * (reach + torch.finfo(precision).tiny)
        largest = _largest(case.value)
        beta = exact.beta.nan_to_num(nan=1.0, posinf=1.0)
        tolerance = _SLACK * epsilon * (1.0 + beta * reach) * largest
        if exact.output.shape[-1]:
            tolerance = tolerance + 8.0 * _distance(coarse.output, exact.output).amax(-1)
        if case.policy[0] == "entropy_target":
            tolerance = tolerance + _SOLVE * largest
        rounding = 2 * torch.finfo(case.query.dtype).eps * largest
        self.output_tolerance = tolerance.nan_to_num(nan=math.inf) + rounding
        kink = _SLACK * epsilon * (1.0 + reach)
        if case.policy[0] == "entropy_target" and case.options.get("sink_role") == "apart":
            kink = kink.clamp(min=_SOLVED)
        self.decided = (self.output_tolerance <= largest) & (exact.margin > kink) | ~self.alive

    def compare(self, impl: str, outcome: Outcome) -> None:
        output, measured = self._call(impl)
        exact, every = self.exact, torch.ones_like(self.alive)
        error = (measured.count - exact.count).abs().double()
        outcome.add("count", error, torch.full_like(error, 0.5), every)
        error = _distance(measured.entropy(), exact.entropy)
        outcome.add("entropy", error, self.entropy_tolerance, every)
        error = _distance(measured.maximum, exact.maximum)
        outcome.add("maximum", error, self.maximum_tolerance, every)
        if output is None:
            return
        if output.dtype != self.case.query.dtype or output.shape != exact.output.shape:
            raise TypeError(f"output: got {output.dtype} {tuple(output.shape)}")
        if output.shape[-1]:
            error = _distance(output, exact.output).amax(-1)
            outcome.add("output", error, self.output_tolerance, self.decided)

    def _call(self, impl: str) -> tuple[Tensor | None, sharpmax.RowStatistics]:
        case = self.case
        if case.kind == "statistics":
            options = {k: v for k, v in case.options.items() if k != "detach_temperature"}
            return None, _attention_statistics(case.query, case.key, impl=impl, **options)
        settings: dict[str, Any] = {"policy": library_policy(case.policy), "impl": impl}
        if case.kind == "odd":
            return call_disguised(case, **settings)
        call = _attention
        if case.kind == "compiled":
            torch._dynamo.reset()
            call = torch.compile(call, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            output, statistics = call(
                case.query,
                case.key,
                case.value,
                return_statistics=True,
                **settings,
                **case.options,
            )
        return output, statistics


class _Gradients:
    """What the gradients of a case must be, and how far they may be from it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.exact, answer = _gradients_of_oracle(case, torch.float64)
        double = _precision(case) == torch.float64
        coarse = self.exact if double else _gradients_of_oracle(case, torch.float32)[0]
        epsilon = torch.finfo(_precision(case)).eps
        rounding = 8 * torch.finfo(case.query.dtype).eps
        # Beta multiplies the rounding of a logit, and a weight changes by that share of itself.
        blur = answer.beta.detach() * _reach(case)
        blurred = 8 * epsilon * float(blur.max()) if blur.numel() else 0.0
        self.decided = bool((answer.margin > 1e4 * epsilon).all())
        self.tolerance: dict[str, Tensor] = {}
        self.size: dict[str, float] = {}
        for name, gradient in self.exact.items():
            # Relative to the terms that a gradient is made of: they may cancel.
            size = float(gradient.abs().max()) if gradient.numel() else 0.0
            size = max(size, _terms(case, answer.beta))
            spread = float(_distance(coarse[name], gradient).max()) if gradient.numel() else 0.0
            summed = rounding * max(1.0, _sharing(name, answer, gradient) ** 0.5 / 8)
            tolerance = 8 * spread + (4e3 * epsilon + summed + blurred) * size
            # Terms beyond the range of a half-precision tensor cannot be added up in it.
            beyond = size > torch.finfo(case.query.dtype).max
            self.tolerance[name] = torch.tensor([math.inf if beyond else tolerance])
            self.size[name] = size

    def compare(self, impl: str, outcome: Outcome) -> None:
        ours = _gradients_of(self.case, impl)
        compared = 0
        for name, gradient in self.exact.items():
            error = _distance(ours[name], gradient)
            error = error.max()[None] if error.numel() else torch.zeros(1)
            decided = self.tolerance[name] <= self.size[name]
            decided = decided & torch.tensor([self.decided])
            compared += int(decided)
            outcome.add(name, error, self.tolerance[name], decided)
        outcome.rows = compared


def _terms(case: Case, beta: Tensor) -> float:
    """The size of the terms of a gradient: beta scale |k| |v| and its like."""
    sharpest = float(beta.detach().max()) if beta.numel() else 1.0
    factor = sharpest * _scale(case) * max(_largest(case.key), _largest(case.query))
    return max(1.0, factor) * _largest(case.value)


def _sharing(name: str, answer: oracle.Answer, gradient: Tensor) -> float:
    """How many rows share an entry of a bias or a sink: each brings a rounding of its output."""
    shared = {"attn_mask": gradient.shape[-1:].numel(), "sink": 1}.get(name, 0)
    return shared * answer.entropy.numel() / max(gradient.numel(), 1)


def _scale(case: Case) -> float:
    scale: float | None = case.options["scale"]
    return float(max(case.query.shape[3], 1) ** -0.5) if scale is None else scale


def _leaves(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything that a gradient is wanted for, as leaves of a graph."""
    mask = case.options.get("attn_mask")
    found: dict[str, Tensor] = {"query": case.query, "key": case.key, "value": case.value}
    if mask is not None and mask.is_floating_point():
        found["attn_mask"] = mask
    if "sink" in case.options:
        found["sink"] = case.options["sink"]
    for name, number in case.policy[1].items():
        if name in ("beta", "reference", "strength", "scale", "target", "limit"):
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
    output: Tensor = _attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        policy=library_policy((name, learned)),
        impl=impl,
        **options,
    )
    return _backward(output, leaves, case.query.dtype)


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
    return _backward(answer.output, leaves, case.query.dtype), answer


def _backward(
    output: Tensor, leaves: dict[str, Tensor], rounded_to: torch.dtype
) -> dict[str, Tensor]:
    probe = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    probe = probe.to(rounded_to)
    names = list(leaves)
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        (output * probe.to(output.dtype)).sum(), [leaves[n] for n in names], allow_unused=True
    )
    return {
        name: torch.zeros_like(leaves[name]) if gradient is None else gradient
        for name, gradient in zip(names, found, strict=True)
    }


def _ask(case: Case, dtype: torch.dtype) -> oracle.Answer:
    query, key, value = (tensor.to(dtype) for tensor in (case.query, case.key, case.value))
    return oracle.attention(query, key, value, case.policy, **_oracle_options(case, {}, dtype))


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
    key = case.key.double().nan_to_num(0, 0, 0).abs()
    key = key.amax(2) if key.shape[2] else key.sum(2)
    group = case.query.shape[1] // max(case.key.shape[1], 1)
    query = case.query.double().nan_to_num(0, 0, 0).abs()
    terms = _scale(case) * (query * key.repeat_interleave(group, 1)[:, :, None]).sum(-1)
    mask = case.options.get("attn_mask")
    if mask is not None and mask.is_floating_point() and mask.numel():
        terms = terms + float(mask.double().masked_fill(mask < -1e4, 0).abs().max())
    sink = case.options.get("sink")
    if sink is not None and sink.numel():
        terms = terms + float(sink.double().nan_to_num(0, 0, 0).abs().max())
    return terms


def _largest(value: Tensor) -> float:
    finite = value.double()[torch.isfinite(value)].abs()
    return float(finite.max()) if finite.numel() else 1.0


def _distance(values: Tensor, exact: Tensor) -> Tensor:
    """Distance, in double precision; 0 where both are NaN or the same infinity."""
    values, exact = values.double(), exact.double()
    same = (torch.isnan(values) & torch.isnan(exact)) | (values == exact)
    return torch.where(same, 0.0, (values - exact).abs())
