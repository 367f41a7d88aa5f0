"""sharpmax keeps attention sharp as inputs grow.

The mathematics works on NumPy arrays, torch tensors and JAX arrays. Neither PyTorch nor JAX nor
transformers is imported before something that needs it is used.
"""

from sharpmax import policies, theory
from sharpmax._extras import MissingExtra
from sharpmax._softmax import inverse_temperature, softmax
from sharpmax._statistics import RowStatistics, entropy, merge_all, statistics
from sharpmax._version import __version__

__all__ = [
    "MissingExtra",
    "RowStatistics",
    "__version__",
    "entropy",
    "inverse_temperature",
    "merge_all",
    "policies",
    "softmax",
    "statistics",
    "theory",
]
