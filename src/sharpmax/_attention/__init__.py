"""Attention with a temperature policy: `api` checks and dispatches, `impl` implements.

`attention` and `attention_statistics` are public. The rest is for rooms that use one attention
in several ways and check its arguments once: `fold` and `check` make a `Problem`, `attend` and
`measure` run it, and `choose` names the implementation. `logits_and_visibility` materialises its
rows; keep no more than `LOGITS_AT_ONCE` logits in memory at a time.
"""

from sharpmax._attention.api import (
    IMPLEMENTATIONS,
    Implementation,
    attend,
    attention,
    attention_statistics,
    choose,
    measure,
)
from sharpmax._attention.impl.composed import LOGITS_AT_ONCE
from sharpmax._attention.impl.reference import logits_and_visibility
from sharpmax._attention.problem import (
    Alignment,
    Problem,
    SinkRole,
    check,
    check_mask,
    fold,
    masked_below,
)

__all__ = [
    "IMPLEMENTATIONS",
    "LOGITS_AT_ONCE",
    "Alignment",
    "Implementation",
    "Problem",
    "SinkRole",
    "attend",
    "attention",
    "attention_statistics",
    "check",
    "check_mask",
    "choose",
    "fold",
    "logits_and_visibility",
    "masked_below",
    "measure",
]
