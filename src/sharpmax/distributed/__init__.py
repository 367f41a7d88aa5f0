"""Attention over keys that live on many ranks, with torch.distributed.

`attention` and `attention_statistics` have the arguments of `sharpmax.attention` and
`sharpmax.attention_statistics`, and the tensors that one rank holds.
"""

from sharpmax.distributed._agreement import RanksDisagreeError
from sharpmax.distributed._alone import alone
from sharpmax.distributed._api import attention, attention_statistics
from sharpmax.distributed._layout import positions, shard, unshard
from sharpmax.distributed._ranks import RankLostError

__all__ = [
    "RankLostError",
    "RanksDisagreeError",
    "alone",
    "attention",
    "attention_statistics",
    "positions",
    "shard",
    "unshard",
]
