"""Measure rows of attention, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax._arrays import Array
from sharpmax._attention import LOGITS_AT_ONCE, Problem, logits_and_visibility, masked_below
from sharpmax._errors import SharpmaxError
from sharpmax._statistics import statistics
from sharpmax.models._diagnosis.examples import Found, chosen_rows, pick

Values = np.ndarray[tuple[int, ...], np.dtype[np.floating]]


class LooksAheadError(SharpmaxError):
    """Raised when a row of a prefix sees keys after that prefix."""


class RowFigures(NamedTuple):
    """Figures of rows: arrays or tensors of the same shape, heads before rows."""

    entropy: Array  # in nats
    count: Array  # keys that the entropy is over
    largest_weight: Array  # among these keys
    spread: Array  # largest minus smallest logit of these keys
    first_mass: Array  # weight of the first token, among all keys
    sink_mass: Array  # weight of a learned sink, among all keys
    tail_mass: Array  # weight of the last visible tokens, among all keys


@dataclass
class Slot:
    """The rows of one layer at one length."""

    blocks: list[Values] = field(default_factory=list)  # [figures, heads, rows]
    windowed: bool = False  # whether a row saw fewer keys than there are tokens up to its own

    def figures(self) -> RowFigures:
        return RowFigures(*np.concatenate(self.blocks, axis=-1))


Slots = dict[tuple[int, int], Slot]  # by layer and length


class Meter:
    """Measure the last rows of prefixes, for each layer; they are final after `keep`.

    `sink` excludes sinks (the first token and a learned sink) from entropy, count, largest weight
    and spread. `examples` rows of the first input are recorded, at its longest length.
    """

    def __init__(
        self,
        rows: int,
        tail: int,
        sink: bool,
        on_layer: Callable[[], None] = lambda: None,
        examples: int = 0,
    ) -> None:
        self.rows, self.tail, self.sink, self._on_layer = rows, tail, sink, on_layer
        self._examples = examples
        self.examples: dict[int, Found] = {}  # by layer
        self.kept: Slots = {}
        self.open: Slots = {}  # of the current input
        self._prefixes: tuple[int, ...] | None = ()
        self._size: int | None = None

    def begin(self, prefixes: Sequence[int] | None, size: int | None = None) -> None:
        """Expect a pass over tokens; measure prefixes of these lengths, stored under `size`.

        None: measure every call whole, over any number of queries and keys.
        """
        self._prefixes, self._size = None if prefixes is None else tuple(prefixes), size

    def observe(self, layer: int, problem: Problem) -> None:
        queries, keys = problem.query.shape[2], problem.key.shape[2]
        if self._prefixes is not None and {queries, keys} != {max(self._prefixes)}:
            # Not over the tokens: patches of an image, for example.
            return
        found: Slots = {}
        for length in self._prefixes or (keys,):
            place = (layer, length if self._size is None else self._size)
            stop = queries if self._prefixes is None else length
            step = max(LOGITS_AT_ONCE // max(problem.query.shape[1] * length, 1), 1)
            slot = found.setdefault(place, Slot())
            for start in range(stop - rows_of(stop, self.rows), stop, step):
                block = _prefix(problem, start, min(start + step, stop), length)
                figures, windowed = measure(block, self.tail, self.sink, self._prefixes is None)
                slot.blocks.append(figures)
                slot.windowed |= windowed
        if self._examples and not self.kept:
            longest = max(self._prefixes or (keys,))
            stop = queries if self._prefixes is None else longest
            self.examples[layer] = [
                example
                for row in chosen_rows(stop - rows_of(stop, self.rows), stop, self._examples)
                for example in pick(_prefix(problem, row, row + 1, longest), row)
            ]
        # Only now, so that an interrupt leaves a layer at all prefixes of a pass or at none.
        _add(self.open, found)
        self._on_layer()

    def keep(self) -> None:
        _add(self.kept, self.open)
        self.drop()

    def keep_partial(self) -> None:
        """Keep the first layers of an unfinished pass, or the lengths before its only one."""
        if self._prefixes is None or len(self._prefixes) == 1:
            last = self._size if self._prefixes is None or self._size else self._prefixes[0]
            self.open = {place: slot for place, slot in self.open.items() if place[1] != last}
        self.keep()

    def take(self, parts: Sequence[tuple[Slots, dict[int, Found]]]) -> None:
        """Replace what was kept by what several meters kept and recorded, in their order."""
        self.kept = {}
        for slots, _ in parts:
            _add(self.kept, slots)
        self.examples = parts[0][1]

    def drop(self) -> None:
        """Discard what was measured since the last call of `keep`."""
        self.open = {}


def _add(slots: Slots, new: Slots) -> None:
    for place, more in new.items():
        slot = slots.setdefault(place, Slot())
        slot.blocks += more.blocks
        slot.windowed |= more.windowed


def rows_of(length: int, rows: int) -> int:
    """Return the number of measured rows of a prefix."""
    return min(rows, max(length // 2, 1))


def measure(problem: Problem, tail: int, sink: bool, padded: bool = False) -> tuple[Values, bool]:
    """Return the figures of all rows of a problem, and whether a window hid keys.

    If `padded`, keys that no row sees are not hidden by a window, but padding.
    """
    logits, _, visible = logits_and_visibility(problem)
    if problem.attn_mask is None or problem.attn_mask.stride(1) == 0:
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
        counted[..., 0] = counted[..., keys:] = False
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
    known = torch.arange(keys, device=seen.device) <= position[:, None]
    if padded:
        known = known & seen.any(-2, keepdim=True)
    windowed = bool((seen.sum(-1) < known.sum(-1)).any())
    stacked = torch.stack([figure.transpose(0, 1).flatten(1) for figure in figures])
    return stacked.cpu().numpy(), windowed


def _prefix(problem: Problem, start: int, stop: int, length: int) -> Problem:
    """Return the rows from `start` to `stop` of a prefix, with the keys of that prefix."""
    rows = problem.rows_between(start, stop)
    if problem.key.shape[2] == length:
        return rows
    mask = rows.attn_mask
    if problem.right != 0:
        later = None if mask is None else mask[..., length:]
        if later is not None and later.dtype != torch.bool:
            later = later > masked_below(later.dtype)
        if later is None or bool(later.any()):
            raise LooksAheadError(f"expected rows that see at most {length} keys, got more")
    mask = None if mask is None else mask[..., :length]
    return replace(rows, key=rows.key[:, :, :length], attn_mask=mask)
