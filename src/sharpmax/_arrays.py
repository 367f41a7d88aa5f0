"""Provide the operations that the mathematics needs, for NumPy, PyTorch and JAX.

A framework that the caller has not imported is never imported here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, a torch tensor or a JAX array; functions return the kind that they get."""


class Namespace:
    """The operations of a framework under one spelling: its own functions, unless defined here.

    `sum` and `max` keep the axis.
    """

    name = "numpy"

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def asarray(self, values: Any, like: Array | None = None) -> Array:
        """`values` as an array of this framework, with the dtype and device of `like` if given."""
        return self._module.asarray(values, dtype=None if like is None else like.dtype)

    def promote(self, values: Array) -> Array:
        """`values` as floating point of at least single precision."""
        if not self._is_floating(values):
            return values.astype(self._module.result_type(values.dtype, float))
        return values.astype("float32") if values.dtype.itemsize < 4 else values

    def astype(self, values: Array, like: Array) -> Array:
        """`values` in the dtype of `like` if that is floating point, otherwise unchanged."""
        return values.astype(like.dtype) if self._is_floating(like) else values

    def _is_floating(self, values: Array) -> bool:
        # bfloat16 is a NumPy extension type of kind "V" on some versions: anything that is neither
        # boolean nor integer counts as floating point.
        return values.dtype.kind not in "biu"

    def largest_root(self, values: Array) -> float:
        """The square root of the largest finite number of the dtype of `values`."""
        return math.sqrt(self._module.finfo(values.dtype).max)

    def stop_gradient(self, values: Array) -> Array:
        return values

    def iterate(self, count: int, body: Callable[..., Any], *state: Array) -> tuple[Array, ...]:
        """Apply `state = body(*state)` up to `count` times, without a gradient.

        It ends earlier if all of the last array holds, unless that cannot be known.
        """
        for _ in range(count):
            state = body(*state)
            if not self.traced(state[-1]) and bool(state[-1].all()):
                break
        return state

    def traced(self, values: Array) -> bool:
        """Whether `values` has no numbers yet, as under compilation."""
        # torch.compile traces NumPy arrays as well.
        torch = sys.modules.get("torch")
        return torch is not None and torch.compiler.is_compiling()

    def any(self, condition: Array) -> bool:
        """Whether any entry holds; False while that cannot be known."""
        return not self.traced(condition) and bool(condition.any())

    def max(self, values: Array, axis: int) -> Array:
        """The largest entry along `axis`; -inf where there is none."""
        return self._module.max(values, axis=axis, keepdims=True, initial=-np.inf)

    def sum(self, values: Array, axis: int) -> Array:
        return self._module.sum(values, axis=axis, keepdims=True)

    def clip(self, values: Array, lower: Array | None, upper: Array | None) -> Array:
        """`values`, not below `lower` and not above `upper`; NaN stays NaN."""
        return self._module.clip(values, lower, upper)

    def spectral_norm(self, matrix: Array) -> Array:
        """The largest singular value of the last two axes."""
        return self._module.linalg.norm(matrix, ord=2, axis=(-2, -1))


class _JAX(Namespace):
    name = "jax"

    def __init__(self, jax: Any) -> None:
        super().__init__(jax.numpy)
        self._jax = jax

    def stop_gradient(self, values: Array) -> Array:
        return self._jax.lax.stop_gradient(values)

    def iterate(self, count: int, body: Callable[..., Any], *state: Array) -> tuple[Array, ...]:
        # One loop rather than its steps in a row, which would take long to compile. What the body
        # reads from outside is given to it without a gradient.
        state = self.stop_gradient(state)
        body, read = self._jax.closure_convert(body, *state)
        read = self.stop_gradient(read)
        _, state = self._jax.lax.while_loop(
            lambda carried: (carried[0] < count) & ~carried[1][-1].all(),
            lambda carried: (carried[0] + 1, tuple(body(*carried[1], *read))),
            (0, state),
        )
        return state

    def traced(self, values: Array) -> bool:
        return isinstance(values, self._jax.core.Tracer)


class _Torch(Namespace):
    name = "torch"

    def asarray(self, values: Any, like: Array | None = None) -> Array:
        if isinstance(values, np.ndarray):
            # A tensor would share the memory of the array, which may be read-only.
            values = values.copy()
        if like is None:
            return self._module.as_tensor(values)
        return self._module.as_tensor(values, dtype=like.dtype, device=like.device)

    def promote(self, values: Array) -> Array:
        if not values.dtype.is_floating_point:
            return values.to(self._module.get_default_dtype())
        return values.float() if values.dtype.itemsize < 4 else values

    def astype(self, values: Array, like: Array) -> Array:
        return values.to(like.dtype) if like.dtype.is_floating_point else values

    def stop_gradient(self, values: Array) -> Array:
        return values.detach()

    def traced(self, values: Array) -> bool:
        torch = self._module
        if torch.compiler.is_compiling():
            return True
        if values.is_cuda and torch.cuda.is_current_stream_capturing():
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

    def expand_dims(self, values: Array, axis: int) -> Array:
        return values.unsqueeze(axis)

    def clip(self, values: Array, lower: Array | None, upper: Array | None) -> Array:
        # One bound at a time: a number and a tensor together would be read out of the tensor.
        if lower is not None:
            values = values.clamp(min=lower)
        return values if upper is None else values.clamp(max=upper)

    def spectral_norm(self, matrix: Array) -> Array:
        return self._module.linalg.matrix_norm(matrix, ord=2)


_NUMPY = Namespace(np)


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
        raise TypeError("expected arrays of one framework, got PyTorch tensors and JAX arrays")
    if tensors:
        return _Torch(torch)
    return _JAX(jax) if jax_arrays else _NUMPY


def broadcast(name: str, values: Array, shape: tuple[int, ...]) -> Array:
    """`values` broadcast to `shape`, or a ValueError that names the argument."""
    try:
        return namespace(values).broadcast_to(values, shape)
    except (RuntimeError, ValueError):
        raise ValueError(
            f"{name}: expected a shape that broadcasts to {shape}, got {tuple(values.shape)}"
        ) from None
