"""Provide the operations that the mathematics needs, for NumPy, PyTorch and JAX.

A framework that the caller has not imported is never imported here.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, a torch tensor or a JAX array; functions return the kind that they get."""


class Namespace(ABC):
    """The operations of a framework under one spelling."""

    name: str

    @abstractmethod
    def asarray(self, values: Any, like: Array | None = None) -> Array:
        """`values` as an array of this framework, with the dtype and device of `like` if given."""

    @abstractmethod
    def promote(self, values: Array) -> Array:
        """`values` as floating point of at least single precision."""

    @abstractmethod
    def astype(self, values: Array, like: Array) -> Array:
        """`values` in the dtype of `like` if that is floating point, otherwise unchanged."""

    @abstractmethod
    def largest_root(self, values: Array) -> float:
        """The square root of the largest finite number of the dtype of `values`."""

    @abstractmethod
    def stop_gradient(self, values: Array) -> Array:
        """`values`, held constant in differentiation."""

    @abstractmethod
    def traced(self, values: Array) -> bool:
        """Whether `values` has no numbers yet, as under compilation."""

    @abstractmethod
    def max(self, values: Array, axis: int) -> Array:
        """The largest entry along `axis`, which is kept; -inf where there is none."""

    @abstractmethod
    def sum(self, values: Array, axis: int) -> Array:
        """The sum along `axis`, which is kept."""

    @abstractmethod
    def squeeze(self, values: Array, axis: int) -> Array:
        """`values` without the axis `axis`, whose length is one."""

    @abstractmethod
    def expand_dims(self, values: Array, axis: int) -> Array:
        """`values` with a new axis of length one at `axis`."""

    @abstractmethod
    def broadcast_to(self, values: Array, shape: tuple[int, ...]) -> Array:
        """`values` broadcast to `shape`."""

    @abstractmethod
    def clip(self, values: Array, lower: Array | None, upper: Array | None) -> Array:
        """`values`, not below `lower` and not above `upper`; NaN stays NaN."""

    @abstractmethod
    def maximum(self, first: Array, second: Array) -> Array:
        """The larger of two, entry by entry; NaN wins."""

    @abstractmethod
    def where(self, condition: Array, first: Array | float, second: Array | float) -> Array:
        """`first` where `condition` holds, `second` elsewhere."""

    @abstractmethod
    def exp(self, values: Array) -> Array:
        """The exponential."""

    @abstractmethod
    def log(self, values: Array) -> Array:
        """The natural logarithm."""

    @abstractmethod
    def isinf(self, values: Array) -> Array:
        """Whether an entry is infinite, of either sign."""

    @abstractmethod
    def largest_singular_value(self, matrix: Array) -> Array:
        """The spectral norm of the last two axes."""

    def any(self, condition: Array) -> bool:
        """Whether any entry holds; False while that cannot be known."""
        return not self.traced(condition) and bool(condition.any())


class _NumPyLike(Namespace):
    """NumPy, and frameworks with its spelling."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self._module = module

    def asarray(self, values: Any, like: Array | None = None) -> Array:
        return self._module.asarray(values, dtype=None if like is None else like.dtype)

    def promote(self, values: Array) -> Array:
        module = self._module
        if not self._is_floating(values):
            return values.astype(module.result_type(values.dtype, float))
        return values.astype("float32") if values.dtype.itemsize < 4 else values

    def astype(self, values: Array, like: Array) -> Array:
        return values.astype(like.dtype) if self._is_floating(like) else values

    def _is_floating(self, values: Array) -> bool:
        # bfloat16 is a NumPy extension type of kind "V" on some versions: anything that is neither
        # boolean nor integer counts as floating point.
        return values.dtype.kind not in "biu"

    def largest_root(self, values: Array) -> float:
        return math.sqrt(np.finfo(values.dtype).max)

    def stop_gradient(self, values: Array) -> Array:
        return values

    def traced(self, values: Array) -> bool:
        # torch.compile traces NumPy arrays as well.
        torch = sys.modules.get("torch")
        return torch is not None and torch.compiler.is_compiling()

    def max(self, values: Array, axis: int) -> Array:
        return self._module.max(values, axis=axis, keepdims=True, initial=-np.inf)

    def sum(self, values: Array, axis: int) -> Array:
        return self._module.sum(values, axis=axis, keepdims=True)

    def squeeze(self, values: Array, axis: int) -> Array:
        return self._module.squeeze(values, axis=axis)

    def expand_dims(self, values: Array, axis: int) -> Array:
        return self._module.expand_dims(values, axis)

    def broadcast_to(self, values: Array, shape: tuple[int, ...]) -> Array:
        return self._module.broadcast_to(values, shape)

    def clip(self, values: Array, lower: Array | None, upper: Array | None) -> Array:
        return self._module.clip(values, lower, upper)

    def maximum(self, first: Array, second: Array) -> Array:
        return self._module.maximum(first, second)

    def where(self, condition: Array, first: Array | float, second: Array | float) -> Array:
        return self._module.where(condition, first, second)

    def exp(self, values: Array) -> Array:
        return self._module.exp(values)

    def log(self, values: Array) -> Array:
        return self._module.log(values)

    def isinf(self, values: Array) -> Array:
        return self._module.isinf(values)

    def largest_singular_value(self, matrix: Array) -> Array:
        return self._module.linalg.norm(matrix, ord=2, axis=(-2, -1))


class _JAX(_NumPyLike):
    """JAX: spelled like NumPy, but traced and differentiated."""

    def __init__(self, jax: Any) -> None:
        super().__init__("jax", jax.numpy)
        self._jax = jax

    def largest_root(self, values: Array) -> float:
        return math.sqrt(self._module.finfo(values.dtype).max)

    def stop_gradient(self, values: Array) -> Array:
        return self._jax.lax.stop_gradient(values)

    def traced(self, values: Array) -> bool:
        return isinstance(values, self._jax.core.Tracer)


class _Torch(Namespace):
    """PyTorch."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def asarray(self, values: Any, like: Array | None = None) -> Array:
        if like is None:
            return self._torch.as_tensor(values)
        return self._torch.as_tensor(values, dtype=like.dtype, device=like.device)

    def promote(self, values: Array) -> Array:
        if not values.dtype.is_floating_point:
            return values.to(self._torch.get_default_dtype())
        return values.float() if values.dtype.itemsize < 4 else values

    def astype(self, values: Array, like: Array) -> Array:
        return values.to(like.dtype) if like.dtype.is_floating_point else values

    def largest_root(self, values: Array) -> float:
        return math.sqrt(self._torch.finfo(values.dtype).max)

    def stop_gradient(self, values: Array) -> Array:
        return values.detach()

    def traced(self, values: Array) -> bool:
        torch = self._torch
        if torch.compiler.is_compiling():
            return True
        # Under torch.func transforms and fake tensors a tensor has no numbers of its own.
        return type(values) not in (torch.Tensor, torch.nn.Parameter) or (
            torch._C._functorch.maybe_current_level() is not None
        )

    def max(self, values: Array, axis: int) -> Array:
        if values.shape[axis] == 0:
            return values.sum(axis, keepdim=True) - float("inf")
        return values.amax(axis, keepdim=True)

    def sum(self, values: Array, axis: int) -> Array:
        return values.sum(axis, keepdim=True)

    def squeeze(self, values: Array, axis: int) -> Array:
        return values.squeeze(axis)

    def expand_dims(self, values: Array, axis: int) -> Array:
        return values.unsqueeze(axis)

    def broadcast_to(self, values: Array, shape: tuple[int, ...]) -> Array:
        return values.broadcast_to(shape)

    def clip(self, values: Array, lower: Array | None, upper: Array | None) -> Array:
        # One bound at a time: a number and a tensor together would be read out of the tensor.
        if lower is not None:
            values = values.clamp(min=lower)
        return values if upper is None else values.clamp(max=upper)

    def maximum(self, first: Array, second: Array) -> Array:
        return self._torch.maximum(first, second)

    def where(self, condition: Array, first: Array | float, second: Array | float) -> Array:
        return self._torch.where(condition, first, second)

    def exp(self, values: Array) -> Array:
        return self._torch.exp(values)

    def log(self, values: Array) -> Array:
        return self._torch.log(values)

    def isinf(self, values: Array) -> Array:
        return self._torch.isinf(values)

    def largest_singular_value(self, matrix: Array) -> Array:
        return self._torch.linalg.matrix_norm(matrix, ord=2)


_NUMPY = _NumPyLike("numpy", np)


def namespace(*arrays: Any) -> Namespace:
    """The framework of the arrays among `arrays`; numbers, lists and NumPy arrays go with any.

    Raises:
        TypeError: where PyTorch tensors and JAX arrays come together.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    # A half-initialised module (an import under way) has no array type yet, so no arrays either.
    tensors = torch is not None and any(isinstance(a, torch.Tensor) for a in arrays)
    jax_arrays = hasattr(jax, "Array") and any(isinstance(a, jax.Array) for a in arrays)  # type: ignore[union-attr]
    if tensors and jax_arrays:
        raise TypeError(
            "expected arrays of one framework, got PyTorch tensors and JAX arrays together"
        )
    if tensors:
        return _Torch(torch)
    return _JAX(jax) if jax_arrays else _NUMPY
