"""Policies: how sharp a row is to be.

A policy turns the statistics of a row into an inverse temperature beta = 1/theta. Entropies are in
nats. All are frozen, compare by value, and round-trip through JSON.
"""

from sharpmax.policies._constant import Constant
from sharpmax.policies._entropy_target import EntropyTarget
from sharpmax.policies._exponential import Exponential
from sharpmax.policies._fit import fit
from sharpmax.policies._hard import Hard
from sharpmax.policies._identity import Identity
from sharpmax.policies._log_length import LogLength
from sharpmax.policies._monotone import Monotone
from sharpmax.policies._policy import (
    EntropyRange,
    EntropyRangeWarning,
    Policy,
    Tempered,
    parameter,
)
from sharpmax.policies._polynomial import Paper, Polynomial

__all__ = [
    "Constant",
    "EntropyRange",
    "EntropyRangeWarning",
    "EntropyTarget",
    "Exponential",
    "Hard",
    "Identity",
    "LogLength",
    "Monotone",
    "Paper",
    "Policy",
    "Polynomial",
    "Tempered",
    "fit",
    "parameter",
]
