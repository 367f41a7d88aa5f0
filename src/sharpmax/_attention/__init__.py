"""Attention with a temperature policy: `dispatch` takes the call, `api` and `arrays` serve it.

`attention` and `attention_statistics` are public. The rest is for rooms that use one attention of
tensors in several ways and check its arguments once: `fold` and `check` make a `Problem`, `attend`
and `measure` run it, and `choose` names the implementation. `logits_and_visibility` materialises
its rows; keep no more than `LOGITS_AT_ONCE` logits in memory at a time. These names import PyTorch.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from sharpmax._attention.dispatch import (
    Implementation,
    attention,
    attention_statistics,
    load_tensors,
)
from sharpmax._attention.settings import Alignment, SinkRole

if TYPE_CHECKING:
    from sharpmax._attention.api import IMPLEMENTATIONS, attend, choose, measure
    from sharpmax._attention.impl.composed import LOGITS_AT_ONCE
    from sharpmax._attention.impl.reference import logits_and_visibility
    from sharpmax._attention.problem import Problem, check, check_mask, fold, masked_below

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


_OF_TENSORS = {
    "IMPLEMENTATIONS": "api",
    "LOGITS_AT_ONCE": "impl.composed",
    "Problem": "problem",
    "attend": "api",
    "check": "problem",
    "check_mask": "problem",
    "choose": "api",
    "fold": "problem",
    "logits_and_visibility": "impl.reference",
    "masked_below": "problem",
    "measure": "api",
}


def __getattr__(name: str) -> Any:
    """Load the names that need PyTorch on first use, all at once."""
    if name not in _OF_TENSORS:
        raise AttributeError(f"module 'sharpmax._attention' has no attribute {name!r}")
    load_tensors()
    for each, place in _OF_TENSORS.items():
        globals()[each] = getattr(importlib.import_module(f"sharpmax._attention.{place}"), each)
    return globals()[name]


# At once if PyTorch is there: a compiler that traces the first call must not meet an import.
if hasattr(sys.modules.get("torch"), "Tensor"):
    load_tensors()
