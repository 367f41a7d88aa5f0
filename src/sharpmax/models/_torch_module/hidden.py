"""Notice attention that cannot be served: written out by hand, or inside a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_PRODUCTS = {
    torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.__matmul__,
    Tensor.bmm, Tensor.baddbmm,
}  # fmt: skip
_SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax}
ADVICE = (
    "call torch.nn.functional.scaled_dot_product_attention there, or sharpmax.attention with a "
    "policy of its own"
)
OWN = "it calls sharpmax.attention itself; pass the policy there"
BY_HAND = f"its attention is written out by hand (softmax of a product); {ADVICE}"


class Watch:
    """Follow products of batches to a softmax over their last axis, and find named kernels."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report  # called with the name of a module, and why it cannot be served
        self._products: Any = WeakIdKeyDictionary()
        # Modules that run our kernels: by themselves, or in code compiled by flex_attention.
        self.ours: set[str] = set()

    def call(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function on behalf of a module."""
        result = func(*args, **kwargs)
        kernel = str(func) if type(func).__name__.startswith("OpOverload") else ""
        if kernel.startswith("sharpmax"):
            self.ours.add(name)
        elif re.search("attention|attn", kernel):
            self._report(name, f"its attention is the kernel {kernel}; {ADVICE}")
        if not isinstance(result, Tensor) or result.ndim < 3:
            return result
        given = [*args, *kwargs.values()]
        given = [each for entry in given for each in (entry if type(entry) is list else [entry])]
        tensors = [each for each in given if isinstance(each, Tensor)]
        if func in _PRODUCTS:
            if sum(each.ndim > 2 for each in tensors) > 1:
                self._products[result] = True
        elif any(each in self._products for each in tensors):
            if func in _SOFTMAX:
                dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
                if dim in (-1, result.ndim - 1):
                    self._report(name, BY_HAND)
            elif any(
                each in self._products and each.shape[-1] == result.shape[-1] for each in tensors
            ):
                self._products[result] = True
        return result
