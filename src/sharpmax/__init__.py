"""sharpmax keeps attention sharp as inputs grow.

The mathematics works on NumPy arrays, torch tensors and JAX arrays. Neither PyTorch nor JAX nor
transformers is imported before something that needs it is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sharpmax import policies, theory
from sharpmax._extras import MissingExtra, require
from sharpmax._softmax import inverse_temperature, softmax
from sharpmax._statistics import RowStatistics, entropy, merge_all, statistics
from sharpmax._version import __version__

if TYPE_CHECKING:
    from sharpmax import nn, normalisers
    from sharpmax._attention import attention, attention_statistics

__all__ = [
    "MissingExtra",
    "RowStatistics",
    "__version__",
    "attention",
    "attention_statistics",
    "entropy",
    "inverse_temperature",
    "merge_all",
    "nn",
    "normalisers",
    "policies",
    "softmax",
    "statistics",
    "theory",
]

_NEED_TORCH = {
    "attention": "sharpmax._attention",
    "attention_statistics": "sharpmax._attention",
    "nn": "sharpmax.nn",
    "normalisers": "sharpmax.normalisers",
}


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch when it is first asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'sharpmax' has no attribute {name!r}")
    require("torch", extra="torch", what=f"sharpmax.{name}")
    module = importlib.import_module(_NEED_TORCH[name])
    globals()[name] = module if _NEED_TORCH[name] == f"sharpmax.{name}" else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
