"""Examples as tokens: batches for training, each from its number alone, and for tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.clrs_text.places import PLACES, Place, place_number, places_of
from experiments.clrs_text.recipe import Positions, Recipe
from experiments.clrs_text.task import Characters, Example, Numbers, example

__all__ = ["LONGEST", "Batch", "Encoded", "Encoder", "batches", "training_examples"]

LONGEST = 2048
"""Range of randomised positions: no test has more tokens."""

# First numbers of the seeds of random streams.
_CHOICE, _POSITIONS = 2001, 2002
_IGNORED = -100
# They ask for no index, so their numbers are told none, and no place of a larger list is new. But
# characters have to be told which belong together: there lists, that of the answer too, begin
# anywhere among so many places.
_SORTS = {"bubble_sort", "heapsort", "insertion_sort", "quicksort"}
_ANYWHERE = 66
# Numbers of the other algorithms are from 0 to 1.
_DECIMALS = {
    ("find_maximum_subarray_kadane",): (-1, 1),
    ("graham_scan", "jarvis_march"): (-2, 2),
}
# Indices go up to the size of a test, or of a list of places.
_INTEGERS = (-1, PLACES - 3)


class Encoded(NamedTuple):
    """An example in tokens.

    Attributes:
        tokens: The question and its answer, up to the end of its line.
        asked: Number of tokens of the question.
        positions: Of the tokens; or rows of the table of places, see `place_number`.
    """

    tokens: tuple[int, ...]
    asked: int
    positions: tuple[int, ...]


class Batch(NamedTuple):
    """Examples side by side, filled up at the right.

    A token sees none to its right, so what fills up changes nothing, and needs no mask.

    Attributes:
        tokens: [examples, tokens].
        positions: [examples, tokens].
        before: Which tokens stand before those of answers: [examples, longest answer].
        targets: The tokens of answers, and -100 behind the last: [examples, longest answer].
    """

    tokens: Tensor
    positions: Tensor
    before: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turns examples into tokens and positions.

    Attributes:
        tokenizer: Of `experiments.clrs_text.task`, or one of transformers.
        positions: As in `Recipe`.
    """

    tokenizer: Any
    positions: Positions

    @classmethod
    def of(cls, recipe: Recipe) -> Encoder:
        """The encoder of a recipe."""
        if recipe.tokenizer == "characters":
            return cls(Characters(), recipe.positions)
        # Tokens that are never seen would cost time.
        lowest, highest = 0, 1
        for names, bounds in _DECIMALS.items():
            if set(names) & recipe.lengths.keys():
                lowest, highest = min(lowest, bounds[0]), max(highest, bounds[1])
        decimals = (lowest, highest)
        return cls(Numbers(decimals=decimals, integers=_INTEGERS, words=True), recipe.positions)

    def __call__(self, one: Example) -> Encoded:
        """The tokens of an example; its positions depend on its own seed alone."""
        question = self.tokenizer.encode(one.question, add_special_tokens=False)
        # The end of the line ends the answer; that of the paragraph adds nothing.
        answer = self.tokenizer.encode(one.answer.rstrip("\n") + "\n", add_special_tokens=False)
        tokens = (*question, *answer)
        return Encoded(tokens, len(question), self._positions(question, answer, one))

    def _positions(
        self, question: Sequence[int], answer: Sequence[int], one: Example
    ) -> tuple[int, ...]:
        count = len(question) + len(answer)
        if self.positions == "none":
            return (0,) * count
        if self.positions == "places":
            asked, answered = self._places(question), self._places(answer)
            if one.algorithm in _SORTS and isinstance(self.tokenizer, Numbers):
                return (0,) * count
            if one.algorithm in _SORTS:
                rng = np.random.default_rng((_POSITIONS, one.seed))
                asked, answered = _moved(asked, rng), _moved(answered, rng)
                # Else numbers of the two with the same place could not be told apart.
                answered = [place._replace(row=PLACES - 1) for place in answered]
            return tuple(place_number(place) for place in (*asked, *answered))
        if self.positions == "rotary":
            return tuple(range(count))
        if count > LONGEST:
            raise ValueError(f"positions: expected at most {LONGEST} tokens, got {count}")
        rng = np.random.default_rng((_POSITIONS, one.seed))
        return tuple(np.sort(rng.choice(LONGEST, count, replace=False)).tolist())

    def _places(self, tokens: Sequence[int]) -> list[Place]:
        texts = [self.tokenizer.vocabulary[token] for token in tokens]
        return list(places_of(texts, characters=not isinstance(self.tokenizer, Numbers)))


def _moved(places: Sequence[Place], rng: np.random.Generator) -> list[Place]:
    """The places of a list that begins anywhere."""
    start = int(rng.integers(max(1, _ANYWHERE - max(place.place for place in places))))
    return [place._replace(place=place.place + start * bool(place.place)) for place in places]


def training_examples(recipe: Recipe, seed: int, step: int) -> list[Example]:
    """The examples of a batch: they depend on the recipe's sizes, the seed and the step alone.

    Args:
        recipe: What to draw from.
        seed: Of the training.
        step: Number of the batch.

    Returns:
        As many examples as a batch has, of all algorithms and sizes.
    """
    rng = np.random.default_rng((_CHOICE, seed, step))
    names = list(recipe.lengths)
    grown = min(1.0, (step + 1) / max(1.0, recipe.curriculum * recipe.steps))
    drawn = []
    for number in range(recipe.batch):
        name = names[rng.integers(len(names))]
        smallest, largest = recipe.lengths[name]
        reached = smallest + math.ceil(grown * (largest - smallest))
        length = int(rng.integers(smallest, reached + 1))
        index = step * recipe.batch + number
        drawn.append(example(name, length, seed=seed, index=index))
    return drawn


def batches(encoded: Sequence[Encoded], at_once: int) -> Iterator[tuple[list[int], Batch]]:
    """Put examples of similar lengths side by side.

    Args:
        encoded: The examples.
        at_once: Tokens in a batch, with what fills up; a single example may have more.

    Yields:
        Numbers of the examples of a batch, and the batch.
    """
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].tokens))
    part: list[int] = []
    longest = 0
    for number in order:
        longest = max(longest, len(encoded[number].tokens))
        if part and (len(part) + 1) * longest > at_once:
            yield part, _batch([encoded[each] for each in part])
            part, longest = [], len(encoded[number].tokens)
        part.append(number)
    if part:
        yield part, _batch([encoded[each] for each in part])


def _batch(encoded: Sequence[Encoded]) -> Batch:
    longest = max(len(one.tokens) for one in encoded)
    tokens = torch.zeros(len(encoded), longest, dtype=torch.long)
    positions = torch.zeros_like(tokens)
    before = torch.zeros(
        len(encoded), max(len(one.tokens) - one.asked for one in encoded), dtype=torch.long
    )
    targets = torch.full_like(before, _IGNORED)
    for row, one in enumerate(encoded):
        count = len(one.tokens)
        tokens[row, :count] = torch.tensor(one.tokens)
        positions[row, :count] = torch.tensor(one.positions)
        before[row, : count - one.asked] = torch.arange(one.asked - 1, count - 1)
        targets[row, : count - one.asked] = tokens[row, one.asked : count]
    return Batch(tokens, positions, before, targets)
