"""Attention with a temperature policy for JAX: `jax.nn.dot_product_attention` that stays sharp.

Importing this module makes policies pytrees.
"""

from sharpmax.jax import _policies as _policies
from sharpmax.jax._api import attention, attention_statistics
from sharpmax.jax._flax import flax_attention_fn

__all__ = ["attention", "attention_statistics", "flax_attention_fn"]
