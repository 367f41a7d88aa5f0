"""sharpmax keeps attention sharp as inputs grow.

The mathematics works on NumPy arrays, torch tensors and JAX arrays. PyTorch, JAX and
transformers are imported only when something needs them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sharpmax import policies, tasks, theory
from sharpmax._errors import SharpmaxError
from sharpmax._extras import MissingExtraError, require
from sharpmax._softmax import inverse_temperature, softmax
from sharpmax._statistics import RowStatistics, entropy, merge_all, statistics
from sharpmax._version import __version__

if TYPE_CHECKING:
    from sharpmax import distributed, jax, models, nn, normalisers
    from sharpmax._attention import attention, attention_statistics
    from sharpmax.models import calibrate, diagnose, evaluate, fold, monitor, sharpen

__all__ = [
    "MissingExtraError",
    "RowStatistics",
    "SharpmaxError",
    "__version__",
    "attention",
    "attention_statistics",
    "calibrate",
    "diagnose",
    "distributed",
    "entropy",
    "evaluate",
    "fold",
    "inverse_temperature",
    "jax",
    "merge_all",
    "models",
    "monitor",
    "nn",
    "normalisers",
    "policies",
    "sharpen",
    "softmax",
    "statistics",
    "tasks",
    "theory",
]

# Where a name is defined, the package that it needs, and the extra that installs it.
_LAZY = {
    "attention": ("sharpmax._attention", "torch", "torch"),
    "attention_statistics": ("sharpmax._attention", "torch", "torch"),
    "calibrate": ("sharpmax.models", "transformers", "models"),
    "diagnose": ("sharpmax.models", "transformers", "models"),
    "distributed": ("sharpmax.distributed", "torch", "torch"),
    "evaluate": ("sharpmax.models", "transformers", "models"),
    "fold": ("sharpmax.models", "transformers", "models"),
    "jax": ("sharpmax.jax", "jax", "jax"),
    "models": ("sharpmax.models", "transformers", "models"),
    "monitor": ("sharpmax.models", "transformers", "models"),
    "nn": ("sharpmax.nn", "torch", "torch"),
    "normalisers": ("sharpmax.normalisers", "torch", "torch"),
    "sharpen": ("sharpmax.models", "transformers", "models"),
}


def __getattr__(name: str) -> Any:
    """Load names that need PyTorch or transformers on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'sharpmax' has no attribute {name!r}")
    place, needed, extra = _LAZY[name]
    require(needed, extra=extra, what=f"sharpmax.{name}")
    module = importlib.import_module(place)
    globals()[name] = module if place == f"sharpmax.{name}" else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
