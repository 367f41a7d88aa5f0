"""What is measured of the rows of attention that pass the door, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax._arrays import Array
from sharpmax._attention.impl.composed import LOGITS_AT_ONCE
from sharpmax._attention.impl.reference import logits_and_visibility
from sharpmax._attention.problem import Problem, masked_below
from sharpmax._statistics import statistics

Values = np.ndarray[tuple[int, ...], np.dtype[np.floating]]


class LooksAheadError(Exception):
    """A row sees what lies behind the prefix that it was to be the last of."""


class RowFigures(NamedTuple):
    """What is known of each row: arrays or tensors of the same shape, heads before rows.

    Attributes:
        entropy: in nats.
        count: how many keys the entropy is over.
        largest_weight: among these keys.
        spread: the largest logit of these keys minus the smallest.
        first_mass: the weight of the first token, among all keys.
        sink_mass: the weight of a learned sink, among all keys.
        tail_mass: the weight of the last visible tokens, among all keys.
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
    """The rows of a layer at a length.

    Attributes:
        blocks: arrays [figures, heads, rows], in the order of `RowFigures`.
        windowed: whether a row saw fewer keys than there are tokens up to its own.
    """

    blocks: list[Values]
    windowed: bool = False

    def figures(self) -> RowFigures:
        """Of all rows."""
        return RowFigures(*np.concatenate(self.blocks, axis=-1))


class Meter:
    """Measures the last rows of prefixes, for each layer, and forgets everything else.

    Rows are kept for good only when their input is finished, by `keep`, or by `keep_part`.

    Args:
        rows: how many rows of a prefix are measured; at most half of them.
        tail: how many tokens are the last ones.
        sink: leave sinks out of entropy, count, largest weight and spread: the first token, and a
            learned sink.
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
        """Expect a pass over tokens, of which these prefixes are to be measured.

        Args:
            prefixes: their lengths.
            size: what the rows are filed under, if that is not their length.
        """
        self._prefixes = tuple(prefixes)
        self._size = size

    def observe(self, layer: int, problem: Problem) -> None:
        if {problem.query.shape[2], problem.key.shape[2]} != {max(self._prefixes)}:
            # Something else than the tokens: parts of an image, or a summary of them.
            return
        found: dict[tuple[int, int], Slot] = {}
        for length in self._prefixes:
            place = (layer, length if self._size is None else self._size)
            first = length - rows_of(length, self.rows)
            # No more rows at a time than keep the logits below a constant number.
            step = max(LOGITS_AT_ONCE // max(problem.query.shape[1] * length, 1), 1)
            slot = found.setdefault(place, Slot([]))
            for start in range(first, length, step):
                block = _prefix(problem, start, min(start + step, length), length)
                figures, windowed = measure(block, self.tail, self.sink)
                slot.blocks.append(figures)
                slot.windowed |= windowed
        # A layer is there at all prefixes of a pass or at none, also after an interrupt.
        _add(self._open, found)
        self._on_layer()

    @property
    def unfinished(self) -> int:
        """How many layers and lengths of the input at hand are measured."""
        return len(self._open)

    def keep(self) -> None:
        """Keep what was measured since the last time: an input is finished."""
        _add(self.kept, self._open)
        self.drop()

    def keep_part(self) -> None:
        """Keep what is whole of an input that is not finished.

        Of a pass over several prefixes these are its first layers; where each length has a pass of
        its own, the lengths before the last one.
        """
        if len(self._prefixes) == 1:
            last = self._prefixes[0] if self._size is None else self._size
            self._open = {place: slot for place, slot in self._open.items() if place[1] != last}
        self.keep()

    def drop(self) -> None:
        """Forget what was measured since the last time: an input was not finished."""
        self._open = {}


def _add(slots: dict[tuple[int, int], Slot], new: dict[tuple[int, int], Slot]) -> None:
    """Put the rows of slots behind those that are there."""
    for place, more in new.items():
        slot = slots.setdefault(place, Slot([]))
        slot.blocks += more.blocks
        slot.windowed |= more.windowed


def rows_of(length: int, rows: int) -> int:
    """How many rows of a prefix are measured."""
    return min(rows, max(length // 2, 1))


def measure(problem: Problem, tail: int, sink: bool) -> tuple[Values, bool]:
    """The figures of all rows of a problem that counts its sinks, and whether a window hid keys."""
    logits, _, visible = logits_and_visibility(problem)
    if problem.mask is None or problem.mask.stride(1) == 0:
        # Every head sees the same keys: what is to be known of these is found out once.
        visible = visible[:, :1]
    keys = problem.key.shape[2]
    whole = statistics(logits, where=visible)
    logsumexp = whole.logsumexp()[..., None]
    seen = visible[..., :keys]

    def mass(chosen: Tensor, start: int) -> Tensor:
        """The weight of what is chosen among the keys from one on."""
        some = logits[..., start : start + chosen.shape[-1]]
        return torch.where(chosen, torch.exp(some - logsumexp), 0.0).sum(-1)

    last = seen & (seen.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1) <= tail)
    # Weights of all keys are never made: those that are asked for lie near the end.
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
    """The rows from `start` to `stop` of a prefix of the tokens, and the keys of that prefix.

    Raises:
        LooksAheadError: they see more than these keys.
    """
    rows = problem.rows_between(start, stop)
    if problem.key.shape[2] == length:
        return rows
    mask = rows.mask
    if problem.right != 0 and (mask is None or bool(_visible(mask[..., length:]).any())):
        raise LooksAheadError
    return replace(
        rows, key=rows.key[:, :, :length], mask=None if mask is None else mask[..., :length]
    )


def _visible(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > masked_below(mask.dtype)
