"""Policies: rules from the statistics of a row to its inverse temperature beta = 1/theta.

Entropies are in nats. Policies are frozen, compare by value and round-trip through JSON. To add
one, write a file that derives a class from `Policy` and import it here.
"""

from sharpmax.policies._constant import Constant, Hard, Identity
from sharpmax.policies._entropy_target import EntropyTarget
from sharpmax.policies._exponential import Exponential
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._log_length import LogLength
from sharpmax.policies._monotone import Monotone
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import EntropyRange, EntropyRangeWarning, Neutral, Policy, Tempered
from sharpmax.policies._polynomial import Paper, Polynomial

__all__ = [
    "Constant",
    "EntropyRange",
    "EntropyRangeWarning",
    "EntropyTarget",
    "Exponential",
    "Form",
    "Hard",
    "Identity",
    "KernelForm",
    "LogLength",
    "Monotone",
    "Neutral",
    "Paper",
    "Policy",
    "Polynomial",
    "Tempered",
    "parameter",
]
