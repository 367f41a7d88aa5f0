"""What an attention layer carries while it is sharpened or recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpmax import _attention
from sharpmax._attention import Implementation, Problem, SinkRole
from sharpmax._statistics import Rows, RowStatistics
from sharpmax.models._rule import Rule
from sharpmax.policies import Identity, Policy

ATTRIBUTE = "_sharpmax"  # of a module: registries are process-wide, and two models may differ
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
    """What an attention layer gets, and how it is served."""

    layer: int
    rule: Rule
    heads: int | None = None  # on all ranks, if known
    local: Rule | None = None  # what the heads of this rank get, under tensor parallelism
    impl: Implementation = "auto"
    detach_temperature: bool = False
    sink_role: SinkRole = "key"
    observe: Observe | None = None
    stock: bool = True  # whether a layer without a policy gets the model's own attention
    used: str | None = None  # implementation of the first call outside of compilation

    def rule_of(self, heads: int) -> Rule:
        """Return the rule of the heads that are here: all, or those of this rank."""
        return (self.local if heads != self.heads else None) or self.rule

    def show(self, problem: Problem) -> None:
        """Show a problem to whoever observes this layer."""
        if self.observe is not None:
            with torch.no_grad():
                self.observe(self.layer, replace(problem, value=None, dropout=0.0))

    def attend(
        self,
        heads: int,
        make: Callable[[], Problem],
        stock: Callable[[Problem | None], Tensor],
    ) -> Tensor:
        """Serve a call by its rule: [batch, heads, queries, value width].

        `make` makes the problem, and `stock` computes what the model itself does, from the problem
        if that was made.
        """
        rule = self.rule_of(heads)
        problem = None
        if self.observe is not None or rule.policy is not None or not self.stock:
            _check_keys_are_here()
            problem = make()
            self.show(problem)
        if problem is None or rule.policy is None:
            # The CPU kernel is faster than PyTorch's, above all with gradients.
            if problem is not None and not self.stock and _served_by_kernel(problem):
                return rule.scaled(_attention.attend(problem, Identity())[0])
            return rule.scaled(stock(problem))
        if self.used is None and not torch.compiler.is_compiling():
            self.used = _attention.choose(self.impl, problem, rule.policy)
        output, _ = _attention.attend(problem, rule.policy, self.impl, self.detach_temperature)
        return rule.scaled(rule.on_chosen(output, lambda: stock(problem)))

    def weigh(self, problem: Problem) -> Tensor:
        """Return the weights of a call by its rule: [batch, heads, queries, keys]."""
        rows = Rows(*_attention.logits_and_visibility(problem))

        def weights(policy: Policy) -> Tensor:
            policy = policy.current()
            policy.check_heads(problem.query.shape[1])
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_temperature):
                beta: Any = policy.over_queries().of_rows(rows)
            found: Tensor = rows.weights(beta)
            return found.to(problem.query.dtype)

        rule = self.rule_of(problem.query.shape[1])
        self.used = self.used or (None if rule.policy is None else "reference")
        sharp = weights(rule.policy or Identity())
        return rule.on_chosen(sharp, lambda: weights(Identity()))


def _check_keys_are_here() -> None:
    """Raise within PyTorch's context parallelism, where each rank has a part of the keys."""
    if torch.compiler.is_compiling():
        return
    # It replaces this function; there is no other sign of it.
    module = getattr(F.scaled_dot_product_attention, "__module__", None) or ""
    if module.startswith("torch.distributed."):
        raise NotImplementedError(
            "context_parallel: sharpened attention would see the keys of this rank alone; let the "
            "model call sharpmax.distributed.attention, as the guide to scaling out shows"
        )


def _served_by_kernel(problem: Problem) -> bool:
    return _attention.choose("auto", problem, Identity()) == "cpu"


NOT_ATTACHED = Attachment(0, Rule())
