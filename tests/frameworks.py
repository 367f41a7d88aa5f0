"""The three frameworks, as tests see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch


@dataclass(frozen=True)
class Framework:
    """One of the three, as tests see it."""

    name: str

    def array(self, values: Any, dtype: str = "float32") -> Any:
        if self.name == "torch":
            return torch.as_tensor(np.asarray(values), dtype=getattr(torch, dtype))
        if self.name == "jax":
            return jnp.asarray(values, dtype=dtype)
        return np.asarray(values, dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def mask(self, values: Any) -> Any:
        return self.array(values, "bool")

    def owns(self, values: Any) -> bool:
        kinds = {"numpy": (np.ndarray, np.generic), "torch": torch.Tensor, "jax": jnp.ndarray}
        return isinstance(values, kinds[self.name])

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for many calls: JAX compiles loops anew in each call of a plain one."""
        return jax.jit(function) if self.name == "jax" else function

    def dtype(self, values: Any) -> str:
        return str(values.dtype).removeprefix("torch.")

    def numpy(self, values: Any) -> np.ndarray:
        if self.name == "torch":
            values = values.detach().double() if values.is_floating_point() else values
            return values.numpy()
        return np.asarray(values, dtype="float64") if values.dtype != bool else np.asarray(values)
