"""Model the communication of attention over ranks by latency and bandwidth.

A message of n bytes between two ranks takes latency + n / bandwidth. Collectives are sequences of
such steps, one at a time on every rank:

    all-reduce    reduce-scatter and all-gather around a ring: 2 (R - 1) steps of n / R bytes
    all-gather    around a ring: R - 1 steps of one shard
    all-to-all    R - 1 steps, one part each
    ring          R - 1 steps of one shard

With `logarithmic`, all-reduce has 2 log2(R) steps of latency instead and all-gather log2(R), as
libraries choose for short messages on many ranks. The bytes are the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "METHODS", "NETWORKS", "Network", "Shape", "Transfer", "backward_transfers", "seconds",
    "transfers",
]  # fmt: skip

METHODS = ("tree", "ring", "all_gather", "ulysses")


@dataclass(frozen=True)
class Network:
    """What connects the ranks: seconds per message, and bytes per second and rank."""

    latency: float
    bandwidth: float


NETWORKS = {
    "NVLink": Network(3e-6, 400e9),
    "InfiniBand": Network(5e-6, 45e9),
    "Ethernet": Network(20e-6, 11e9),
}
"""Inputs of the model, not measurements: round figures for NVLink 4 within one domain, 400 Gb/s
InfiniBand with one port per rank, and 100 Gb/s Ethernet."""


@dataclass(frozen=True)
class Shape:
    """One attention. `queries` is the number of all queries, replicated for "tree"."""

    batch: int
    heads: int
    key_heads: int
    width: int
    queries: int
    keys: int
    bytes_per_number: int

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Transfer:
    """One collective: its kind, and the bytes that go into it on one rank.

    For "all_reduce" the bytes are those of the tensor, for "all_to_all" those of all parts, and for
    "all_gather" and "shift" those of one shard. A "shift" passes it to the next rank.
    """

    kind: str
    size: float

    def steps(self, ranks: int) -> int:
        """How many messages follow each other."""
        return {"all_reduce": 2 * (ranks - 1), "shift": 1}.get(self.kind, ranks - 1)

    def sent(self, ranks: int) -> float:
        """How many bytes a rank sends."""
        share = (ranks - 1) / ranks
        factor = {"all_reduce": 2 * share, "all_gather": ranks - 1, "all_to_all": share}
        return self.size * factor.get(self.kind, 1.0)

    def seconds(self, ranks: int, network: Network, logarithmic: bool = False) -> float:
        """How long it takes."""
        steps = self.steps(ranks)
        if logarithmic and self.kind in ("all_reduce", "all_gather"):
            doublings = math.ceil(math.log2(ranks))
            steps = min(steps, doublings * (2 if self.kind == "all_reduce" else 1))
        return steps * network.latency + self.sent(ranks) / network.bandwidth


def transfers(method: str, shape: Shape, ranks: int, settings: bool = True) -> list[Transfer]:
    """Return the collectives of one forward pass of `sharpmax.distributed.attention`.

    Args:
        method: one of `METHODS`.
        shape: the attention.
        ranks: the number of ranks; lengths divide by it.
        settings: whether ranks compare settings and lengths first, as they do without key_lengths.
    """
    number = shape.bytes_per_number
    wide = 8 if number == 8 else 4  # statistics and sums are in single precision at least
    rows = shape.batch * shape.heads * shape.queries
    key = shape.batch * shape.key_heads * shape.keys * shape.width * number / ranks
    query = rows * shape.width * number / ranks
    found = [Transfer("all_gather", 6 * 8)] if settings else []
    if method == "tree":
        sums = [rows * wide, rows * 3 * 8, rows * (shape.width + 1) * wide]
        return found + [Transfer("all_reduce", size) for size in sums]
    if method == "ring":
        passes = [key] * (ranks - 1) + [2 * key] * (ranks - 1)
        return found + [Transfer("shift", size) for size in passes]
    if method == "all_gather":
        return found + [Transfer("all_gather", key)] * 2
    copies = max(ranks // shape.key_heads, 1) if shape.key_heads % ranks else 1
    sizes = [query, key * copies, key * copies, query]
    return found + [Transfer("all_to_all", size) for size in sizes]


def backward_transfers(method: str, shape: Shape, ranks: int) -> list[Transfer]:
    """Return the collectives of the backward pass, for a policy that reads the entropy.

    What is summed over ranks is sent in single precision at least. Arguments as for `transfers`.
    """
    number, wide = shape.bytes_per_number, max(shape.bytes_per_number, 4)
    rows = shape.batch * shape.heads * shape.queries
    key = shape.batch * shape.key_heads * shape.keys * shape.width / ranks
    if method == "tree":
        return [Transfer("all_reduce", size) for size in (rows * wide, rows * shape.width * wide)]
    if method == "all_gather":
        return [Transfer("all_to_all", key * ranks * wide)] * 2
    if method == "ulysses":
        return transfers(method, shape, ranks, settings=False)[::-1]
    sizes = []
    for tensors in (2, 1):  # keys and values to attend, keys to measure; their gradients follow
        for step in range(ranks):
            sizes += [tensors * key * number] if step + 1 < ranks else []
            sizes += [tensors * key * wide] if step else []
        sizes.append(tensors * key * wide)
    return [Transfer("shift", size) for size in sizes]


def seconds(
    method: str,
    shape: Shape,
    ranks: int,
    network: Network,
    *,
    logarithmic: bool = False,
    settings: bool = True,
) -> float:
    """Return how long the messages of one forward pass take, if nothing overlaps."""
    parts = transfers(method, shape, ranks, settings)
    return sum(part.seconds(ranks, network, logarithmic) for part in parts)
