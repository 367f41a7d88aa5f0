"""Examples as tokens: batches for training, each from its number alone, and for tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax.lab.clrs_text.recipe import Positions, Recipe
from sharpmax.tasks.clrs_text import Characters, Example, Numbers, example

__all__ = ["LONGEST", "Batch", "Encoded", "Encoder", "batches", "training_examples"]

LONGEST = 2048
"""Range of randomised positions: no test has more tokens."""

# First numbers of the seeds of random streams.
_CHOICE, _POSITIONS = 2001, 2002
_IGNORED = -100
# Places of characters in a number: a sign, a digit, a point, three digits, and a space before.
_STRIDE = 8
# Coupled positions begin anywhere, so that lists of so many numbers have none that is new.
_PLACES = 64
# Numbers of the other algorithms are from 0 to 1.
_DECIMALS = {
    ("find_maximum_subarray_kadane",): (-1, 1),
    ("graham_scan", "jarvis_march"): (-2, 2),
}
# Indices go up to the size of a test.
_INTEGERS = (-1, 255)


class Encoded(NamedTuple):
    """An example in tokens.

    Attributes:
        tokens: The question and its answer, up to the end of its line.
        asked: Number of tokens of the question.
        positions: Of the tokens.
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
        places: Places in front of a token of an answer, in any of the examples: [places].
        targets: The tokens of answers behind these places, and -100 for others: [examples, places].
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turns examples into tokens and positions.

    Attributes:
        tokenizer: Of `sharpmax.tasks.clrs_text`, or one of transformers.
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
        return Encoded(tokens, len(question), self._positions(question, len(tokens), one.seed))

    def _positions(self, question: Sequence[int], count: int, seed: int) -> tuple[int, ...]:
        if self.positions == "none":
            return (0,) * count
        if self.positions == "coupled":
            stride = 1 if isinstance(self.tokenizer, Numbers) else _STRIDE
            texts = [self.tokenizer.vocabulary[token] for token in question]
            places = tuple(_coupled(texts, stride))
            rng = np.random.default_rng((_POSITIONS, seed))
            start = stride * int(rng.integers(max(1, _PLACES - max(places) // stride)))
            # The answer is not told where it is: it must not end because it is as long as ever.
            moved = tuple(start + place if place else 0 for place in places)
            return (*moved, *(0,) * (count - len(question)))
        if self.positions == "rotary":
            return tuple(range(count))
        if count > LONGEST:
            raise ValueError(f"positions: expected at most {LONGEST} tokens, got {count}")
        rng = np.random.default_rng((_POSITIONS, seed))
        return tuple(np.sort(rng.choice(LONGEST, count, replace=False)).tolist())


def _coupled(texts: Sequence[str], stride: int) -> Iterator[int]:
    """The place of each token in its list, and within its number if that has several tokens.

    Args:
        texts: Of the tokens.
        stride: From a place to the next: no number of a list has more tokens.

    Yields:
        The places from 1 on, those of brackets and numbers; 0 outside of lists.

    Example:
        >>> list(_coupled(["s", ":", " ", "[", "0.25", " 0.3", "]", ",", " 2"], 1))
        [0, 0, 0, 1, 2, 3, 4, 0, 0]
        >>> list(_coupled("s: [1 25]", 8))
        [0, 0, 0, 8, 17, 24, 25, 26, 32]
    """
    place = within = 0
    for text in texts:
        if text == "[":
            place, within = 1, 0
        elif text == "]" or (place and text.startswith(" ")):
            place, within = place + 1, 0
        elif place == 1:
            # Numbers after the first have a space before them.
            place, within = 2, 1
        yield stride * place + min(within, stride - 1) if place else 0
        within += 1
        if text == "]":
            place = 0


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
    # Answers of similar lengths too: where one has an answer, logits are made for all.
    order = sorted(
        range(len(encoded)),
        key=lambda number: (
            len(encoded[number].tokens) - encoded[number].asked,
            len(encoded[number].tokens),
        ),
    )
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
    targets = torch.full_like(tokens, _IGNORED)
    for row, one in enumerate(encoded):
        count = len(one.tokens)
        tokens[row, :count] = torch.tensor(one.tokens)
        positions[row, :count] = torch.tensor(one.positions)
        targets[row, one.asked - 1 : count - 1] = tokens[row, one.asked : count]
    places = (targets != _IGNORED).any(0).nonzero()[:, 0]
    return Batch(tokens, positions, places, targets[:, places])
