"""Measure rows of attention, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax._arrays import Array
from sharpmax._attention import LOGITS_AT_ONCE, Problem, logits_and_visibility, masked_below
from sharpmax._errors import SharpmaxError
from sharpmax._statistics import statistics

Values = np.ndarray[tuple[int, ...], np.dtype[np.floating]]


class LooksAheadError(SharpmaxError):
    """Raised when a row of a prefix sees keys after that prefix."""


class RowFigures(NamedTuple):
    """Figures of rows: arrays or tensors of the same shape, heads before rows.

    Attributes:
        entropy: in nats.
        count: number of keys that the entropy is over.
        largest_weight: among these keys.
        spread: largest minus smallest logit of these keys.
        first_mass: weight of the first token, among all keys.
        sink_mass: weight of a learned sink, among all keys.
        tail_mass: weight of the last visible tokens, among all keys.
    """

    entropy: Array
    count: Array
    largest_weight: Array
    spread: Array
    first_mass: Array
    sink_mass: Array
    tail_mass: Array


@dataclass
class Slot:
    """The rows of one layer at one length.

    Attributes:
        blocks: arrays [figures, heads, rows], in the order of `RowFigures`.
        windowed: whether a row saw fewer keys than there are tokens up to its own.
    """

    blocks: list[Values]
    windowed: bool = False

    def figures(self) -> RowFigures:
        """Return the figures of all rows."""
        return RowFigures(*np.concatenate(self.blocks, axis=-1))


class Meter:
    """Measure the last rows of prefixes, for each layer.

    It is an observer of `_interface`. Rows are final only after `keep` or `keep_partial`.

    Args:
        rows: number of rows that are measured per prefix, at most half of it.
        tail: number of tokens that `tail_mass` sums over.
        sink: exclude sinks (the first token and a learned sink) from entropy, count, largest weight
            and spread.
        on_layer: called after each layer.
    """

    def __init__(
        self, rows: int, tail: int, sink: bool, on_layer: Callable[[], None] = lambda: None
    ) -> None:
        self.rows, self.tail, self.sink = rows, tail, sink
        self._on_layer = on_layer
        self.kept: dict[tuple[int, int], Slot] = {}
        self._open: dict[tuple[int, int], Slot] = {}
        self._prefixes: tuple[int, ...] = ()
        self._size: int | None = None

    def begin(self, prefixes: Sequence[int], size: int | None = None) -> None:
        """Expect a pass over tokens; measure prefixes of these lengths, stored under `size`."""
        self._prefixes = tuple(prefixes)
        self._size = size

    def observe(self, layer: int, problem: Problem) -> None:
        """Measure one layer."""
        if {problem.query.shape[2], problem.key.shape[2]} != {max(self._prefixes)}:
            # Not over the tokens: patches of an image, for example.
            return
        found: dict[tuple[int, int], Slot] = {}
        for length in self._prefixes:
            place = (layer, length if self._size is None else self._size)
            first = length - rows_of(length, self.rows)
            step = max(LOGITS_AT_ONCE // max(problem.query.shape[1] * length, 1), 1)
            slot = found.setdefault(place, Slot([]))
            for start in range(first, length, step):
                block = _prefix(problem, start, min(start + step, length), length)
                figures, windowed = measure(block, self.tail, self.sink)
                slot.blocks.append(figures)
                slot.windowed |= windowed
        # Only now, so that an interrupt leaves a layer at all prefixes of a pass or at none.
        _add(self._open, found)
        self._on_layer()

    @property
    def unfinished(self) -> int:
        """The number of measured layers times lengths of the current input."""
        return len(self._open)

    def keep(self) -> None:
        """Keep what was measured since the last call: an input is finished."""
        _add(self.kept, self._open)
        self.drop()

    def keep_partial(self) -> None:
        """Keep what is complete of an unfinished input.

        This is the first layers of a pass over several prefixes. With one pass per length, it is
        the lengths before the last one.
        """
        if len(self._prefixes) == 1:
            last = self._prefixes[0] if self._size is None else self._size
            self._open = {place: slot for place, slot in self._open.items() if place[1] != last}
        self.keep()

    def drop(self) -> None:
        """Discard what was measured since the last call of `keep`."""
        self._open = {}


def _add(slots: dict[tuple[int, int], Slot], new: dict[tuple[int, int], Slot]) -> None:
    for place, more in new.items():
        slot = slots.setdefault(place, Slot([]))
        slot.blocks += more.blocks
        slot.windowed |= more.windowed


def rows_of(length: int, rows: int) -> int:
    """Return the number of measured rows of a prefix."""
    return min(rows, max(length // 2, 1))


def measure(problem: Problem, tail: int, sink: bool) -> tuple[Values, bool]:
    """Return the figures of all rows of a problem, and whether a window hid keys."""
    logits, _, visible = logits_and_visibility(problem)
    if problem.mask is None or problem.mask.stride(1) == 0:
        # Every head sees the same keys: look at them once.
        visible = visible[:, :1]
    keys = problem.key.shape[2]
    whole = statistics(logits, where=visible)
    logsumexp = whole.logsumexp()[..., None]
    seen = visible[..., :keys]

    def mass(chosen: Tensor, start: int) -> Tensor:
        """Return the weight of the chosen keys, which begin at `start`."""
        some = logits[..., start : start + chosen.shape[-1]]
        return torch.where(chosen, torch.exp(some - logsumexp), 0.0).sum(-1)

    last = seen & (seen.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1) <= tail)
    # Compute weights only from the first of the last keys on.
    start = int(last.flatten(0, -2).any(0).int().argmax())

    counted, chosen = visible, whole
    if sink:
        counted = visible.clone()
        counted[..., 0] = False
        counted[..., keys:] = False
        chosen = statistics(logits, where=counted)
    smallest = torch.where(counted, logits, torch.inf).amin(-1)
    figures = RowFigures(
        entropy=chosen.entropy(),
        count=torch.where(seen.any(-1), chosen.count, 0).to(logits.dtype),
        largest_weight=1.0 / chosen.mass,
        spread=chosen.maximum - smallest,
        first_mass=mass(seen[..., :1], 0),
        sink_mass=mass(visible[..., keys:], keys),
        tail_mass=mass(last[..., start:], start),
    )
    position = torch.arange(problem.query.shape[2], device=seen.device) + problem.offset
    windowed = bool((seen.sum(-1) < position + 1).any())
    stacked = torch.stack([figure.transpose(0, 1).flatten(1) for figure in figures])
    return stacked.cpu().numpy(), windowed


def _prefix(problem: Problem, start: int, stop: int, length: int) -> Problem:
    """Return the rows from `start` to `stop` of a prefix, with the keys of that prefix."""
    rows = problem.rows_between(start, stop)
    if problem.key.shape[2] == length:
        return rows
    mask = rows.mask
    if problem.right != 0 and (mask is None or bool(_visible(mask[..., length:]).any())):
        raise LooksAheadError(f"expected rows that see at most {length} keys, got more")
    return replace(
        rows, key=rows.key[:, :, :length], mask=None if mask is None else mask[..., :length]
    )


def _visible(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > masked_below(mask.dtype)
