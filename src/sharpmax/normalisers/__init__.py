"""Normalisers: maps from the logits of a row to its weights, one file per idea.

Softmax with a policy and its alternatives share one interface, for comparison and for use in
models: `sharpmax.attention(..., normaliser=...)`.
"""

from sharpmax.normalisers._asentmax import ASEntmax
from sharpmax.normalisers._differential import Differential
from sharpmax.normalisers._discontinuous import Discontinuous
from sharpmax.normalisers._entmax import Entmax, Sparsemax
from sharpmax.normalisers._hard import Hard
from sharpmax.normalisers._linear import Linear
from sharpmax.normalisers._normaliser import Normaliser
from sharpmax.normalisers._off_by_one import OffByOne
from sharpmax.normalisers._selective import Selective
from sharpmax.normalisers._sigmoid import Sigmoid
from sharpmax.normalisers._softmax import Softmax
from sharpmax.normalisers._ssmax import LogLength, SSMax
from sharpmax.normalisers._stick_breaking import StickBreaking
from sharpmax.normalisers._subset import Local, TopK

__all__ = [
    "ASEntmax",
    "Differential",
    "Discontinuous",
    "Entmax",
    "Hard",
    "Linear",
    "Local",
    "LogLength",
    "Normaliser",
    "OffByOne",
    "SSMax",
    "Selective",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "StickBreaking",
    "TopK",
]
