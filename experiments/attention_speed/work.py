"""Count what a launch of a Triton kernel does: operations of products, exponentials, bytes.

The counts follow the blocks that the kernels visit, padding and masked entries included. A byte
counts once per launch, however many programs ask for it: caches serve the others. Tests compare all
counts with those that the interpreter makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from sharpmax._attention.impl.triton.launch import Launch

__all__ = ["Work", "key_blocks", "of_launch", "total"]


@dataclass(frozen=True)
class Work:
    """What one launch does, or several.

    Attributes:
        operations: Multiplications and additions of matrix products.
        exponentials: Exponentials of weights and of factors that rescale sums.
        read: Distinct bytes that are read.
        written: Distinct bytes that are written.
    """

    operations: int
    exponentials: int
    read: int
    written: int

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.read + self.written


def total(works: Iterable[Work]) -> Work:
    """Add up the work of launches that run one after another."""
    parts = list(works)
    return Work(
        sum(each.operations for each in parts),
        sum(each.exponentials for each in parts),
        sum(each.read for each in parts),
        sum(each.written for each in parts),
    )


def of_launch(launch: Launch) -> Work:
    """Count the work of a launch in which no block is skipped.

    Raises:
        ValueError: The launch has a mask. What is read of a mask depends on the window.
    """
    constants = launch.constants
    if constants["MASKED"]:
        raise ValueError("launch: expected none with a mask, got one")
    if constants.get("CAREFUL"):  # no value is odd: every program reads that, and ends
        rows = launch.tile.rows * constants["RATIO"]
        first = replace(launch, tile=launch.tile._replace(rows=rows))
        return Work(0, 0, 4 * _programs(first), 0)
    if launch.kernel == "count_visible":  # no key may be infinite: positions tell the count
        return Work(0, 0, 4, 4 * launch.arguments["count"].numel())
    blocks, seen = key_blocks(launch)
    tile, width, values = launch.tile, constants["BLOCK_D"], constants.get("BLOCK_V", 0)
    area = tile.rows * tile.keys
    kept = constants.get("SCORES") == "read"
    logits, mixed = (
        _blocks(constants.get(name, 0), constants["CHUNK"]) * constants["CHUNK"]
        if constants["CHUNK"]
        else padded
        for name, padded in (("WIDTH", width), ("VALUE_WIDTH", values))
    )
    products = {
        "measure": 0 if kept else logits,
        "attend": values if kept else logits + values,
        "by_query": logits + width + (mixed if constants.get("VALUES") else 0),
        "by_key": logits + width + (mixed + values if constants.get("VALUES") else 0),
    }[launch.kernel]
    each = area * (2 if constants["CAPPED"] else 1)
    if launch.kernel in ("measure", "attend") or constants["VALUES"]:
        each += tile.rows  # the factor of a row
    read, written = _bytes(launch, seen)
    return Work(2 * area * products * blocks, each * blocks, read, written)


def key_blocks(launch: Launch) -> tuple[int, int]:
    """Return how many blocks all programs visit, and how many keys of a head they see together.

    The ranges are those of `tiles.row_range`, `tiles.key_range` and `backward.by_key`.
    """
    arguments, tile = launch.arguments, launch.tile
    queries, keys, group = (arguments[name] for name in ("queries", "keys", "group"))
    left, right, offset = (arguments[name] for name in ("left", "right", "offset"))
    windowed = launch.constants["WINDOWED"]
    visited, lowest, highest = 0, keys, 0
    if launch.over_keys:
        for base in range(0, keys, tile.keys):
            start, stop = 0, queries
            if windowed:
                start = max(base - right - offset, 0)
                stop = min(base + tile.keys + left - offset, queries)
            visited += _blocks((stop - start) * group, tile.rows)
            # Chunks of a key are read for the rows that see it, whole keys before.
            if start < stop or not launch.constants["CHUNK"]:
                lowest, highest = min(lowest, base), min(base + tile.keys, keys)
    else:
        for begin in range(0, queries * group, tile.rows):
            first, last = begin // group, (min(begin + tile.rows, queries * group) - 1) // group
            start, stop = 0, keys
            if windowed:
                start = max(first + offset - left, 0) // tile.keys * tile.keys
                stop = min(last + offset + right + 1, keys)
            visited += _blocks(stop - start, tile.keys)
            if start < stop:
                lowest, highest = min(lowest, start), max(highest, stop)
    batch, heads = arguments["key"].shape[:2]
    return visited * batch * heads, max(highest - lowest, 0)


def _bytes(launch: Launch, seen: int) -> tuple[int, int]:
    """Return the bytes that a launch reads and writes."""
    arguments, constants = launch.arguments, launch.constants
    query, key = arguments["query"], arguments["key"]
    rows = query.shape[0] * query.shape[1] * query.shape[2]
    heads = key.shape[0] * key.shape[1]
    splits = arguments.get("splits", 1)
    scores, number = constants.get("SCORES", ""), 4
    of_query, of_key = rows * key.shape[3] * query.itemsize, seen * heads * key.shape[3]
    of_key *= key.itemsize
    bits, size = constants.get("BITS", 0), launch.tile.keys
    logits = bits // 8 * seen
    if bits == 12:  # a byte, and half of one that keys of both halves of a block share
        logits += seen // size * (size // 2) + min(seen % size, size // 2)
    peaks = 4 * _blocks(seen, size)  # the largest of each block
    if scores == "read" and constants["CHUNK"]:
        of_query = 0  # chunks of it are read where logits are made
    if launch.kernel == "measure":
        kept = logits + (peaks if scores == "write" or bits < 32 else 0)
        read = of_query + (rows * kept if scores == "read" else of_key)
        read += number * rows * constants["TEMPERED"]
        columns = 4 + constants["TEMPERED"] + constants["TIED"]
        written = number * rows * splits * columns + (rows * kept if scores == "write" else 0)
        return read, written
    values = seen * heads * constants["VALUE_WIDTH"] * key.itemsize
    width = constants["VALUE_WIDTH"]
    if launch.kernel == "attend":
        read = of_query + values + number * rows * (1 + constants["KNOWN"])
        read += rows * (logits + peaks) if scores == "read" else of_key
        output = rows * width * _itemsize(arguments["output"])
        return read, splits * (output + 2 * number * rows) + number * _programs(launch)
    with_values = constants["VALUES"]
    read = of_query + of_key + number * rows * (4 if with_values else 5)
    if with_values:
        read += values + rows * width * _itemsize(arguments["gradient"])
    if launch.kernel == "by_query":
        return read, of_query + (number * rows if with_values else 0)
    every = heads * key.shape[2] * key.itemsize
    return read, every * (key.shape[3] + (width if with_values else 0))


def _programs(launch: Launch) -> int:
    blocks, splits = launch.grid
    return blocks * splits


def _itemsize(tensor: Any) -> int:
    assert isinstance(tensor, torch.Tensor)
    return tensor.itemsize


def _blocks(length: int, size: int) -> int:
    return -(-max(length, 0) // size)
