"""Examples as tokens and positions, and batches of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.clrs_text.places import Place, place_number, places_of
from experiments.clrs_text.recipe import Positions, Recipe
from experiments.clrs_text.task import SORTS, WITH_TIES, Characters, Example, Numbers, example
from sharpmax._files import read_sealed, write_sealed

__all__ = [
    "LONGEST",
    "Batch",
    "Encoded",
    "Encoder",
    "TrainingData",
    "batches",
    "training_examples",
]

LONGEST = 2048
"""The range of randomised positions; no test has more tokens."""

_KIND = "CLRS-Text examples, format 1"
_BATCHES_PER_FILE = 64
# The first part of the seeds of random streams.
_CHOICE, _POSITIONS, _TIES, _STARTS = 2001, 2002, 2003, 2004
_IGNORED = -100
# Sorting needs no index, so numbers to sort receive none, and a longer list has no new places. With
# characters the model must know which belong together: there every list, that of the answer
# included, starts at a random one of these places.
_FIRST_PLACES = 66
# All other algorithms have decimals from 0 to 1.
_DECIMALS = {
    "find_maximum_subarray_kadane": (-1, 1),
    "graham_scan": (-2, 2),
    "jarvis_march": (-2, 2),
}
# Their answers are one index.
_INDICES = {"binary_search", "kmp_matcher", "minimum", "naive_string_matcher", "quickselect"}


class Encoded(NamedTuple):
    """An example in tokens.

    Attributes:
        tokens: The question and its answer, up to the end of its line.
        asked: Number of tokens in the question.
        positions: The position of each token, or its `place_number`.
    """

    tokens: tuple[int, ...]
    asked: int
    positions: tuple[int, ...]


class Batch(NamedTuple):
    """Examples padded on the right.

    No token attends to its right, so padding changes nothing and needs no mask.

    Attributes:
        tokens: Tokens, [examples, tokens].
        positions: Positions, [examples, tokens].
        before: Index of the token before each answer token, [examples, longest answer].
        targets: Answer tokens, and -100 after the last, [examples, longest answer].
    """

    tokens: Tensor
    positions: Tensor
    before: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turn examples into tokens and positions.

    Attributes:
        tokenizer: One of `experiments.clrs_text.task`, or of transformers.
        positions: As in `Recipe`.
        places: As in `Recipe`.
    """

    tokenizer: Any
    positions: Positions
    places: int = Recipe.places

    @classmethod
    def of(cls, recipe: Recipe) -> Encoder:
        """Make the encoder of a recipe."""
        if recipe.tokenizer == "characters":
            return cls(Characters(), recipe.positions, recipe.places)
        # Only the decimals that occur: unused tokens cost time.
        bounds = [_DECIMALS.get(name, (0, 1)) for name in recipe.lengths] or [(0, 1)]
        decimals = min(low for low, _ in bounds), max(high for _, high in bounds)
        # Indices go up to the size of a test, which the places of a list bound.
        integers = (-1, recipe.places - 3)
        numbers = Numbers(decimals=decimals, integers=integers, words=True)
        return cls(numbers, recipe.positions, recipe.places)

    def __call__(self, one: Example, *, training: bool = False) -> Encoded:
        """Encode an example; its positions depend on its own seed alone.

        Args:
            one: The example.
            training: Whether lists begin at a random index, if positions are "shifted".
        """
        start, right = 0, one.answer.rstrip("\n")
        if training and self.positions == "shifted" and one.algorithm in _INDICES:
            # Up to the largest size of a test, so that each of its indices occurs.
            rng = np.random.default_rng((_STARTS, one.seed))
            start = int(rng.integers(self.places - 2 - one.length))
            right = str(int(right) + start)
        question = self.tokenizer.encode(one.question, add_special_tokens=False)
        if getattr(self.tokenizer, "add_bos_token", False):
            question = [self.tokenizer.bos_token_id, *question]
        # The end of the line marks the end of the answer; the empty line after it adds nothing.
        answer = self.tokenizer.encode(right + "\n", add_special_tokens=False)
        tokens = (*question, *answer)
        return Encoded(tokens, len(question), self._positions(question, answer, one, start))

    def _positions(
        self, question: Sequence[int], answer: Sequence[int], one: Example, start: int
    ) -> tuple[int, ...]:
        count = len(question) + len(answer)
        sorts = one.algorithm in SORTS
        by_number = isinstance(self.tokenizer, Numbers)
        if self.positions == "none" or (self.positions == "places" and sorts and by_number):
            return (0,) * count
        rng = np.random.default_rng((_POSITIONS, one.seed))
        # Separates the numbers of a sorted answer from those of the question.
        mark = self.places - 1
        if self.positions == "shifted" and sorts and by_number:
            return (0,) * len(question) + (place_number(Place(row=mark)),) * len(answer)
        if self.positions in ("places", "shifted"):
            asked, answered = self._places(question), self._places(answer)
            if sorts:
                asked, answered = _moved(asked, rng), _moved(answered, rng)
                answered = [place._replace(row=mark) for place in answered]
            elif start:
                asked = [
                    place._replace(place=place.place + start * (place.place > 0)) for place in asked
                ]
            return tuple(place_number(place) for place in (*asked, *answered))
        if self.positions == "rotary":
            return tuple(range(count))
        if count > LONGEST:
            raise ValueError(f"positions: expected at most {LONGEST} tokens, got {count}")
        return tuple(np.sort(rng.choice(LONGEST, count, replace=False)).tolist())

    def _places(self, tokens: Sequence[int]) -> list[Place]:
        texts = [self.tokenizer.vocabulary[token] for token in tokens]
        found = places_of(texts, characters=not isinstance(self.tokenizer, Numbers))
        return [place._replace(place=min(place.place, self.places - 1)) for place in found]


def _moved(places: Sequence[Place], rng: np.random.Generator) -> list[Place]:
    """Shift the places of a list by a random amount."""
    start = int(rng.integers(max(1, _FIRST_PLACES - max(place.place for place in places))))
    return [place._replace(place=place.place + start * bool(place.place)) for place in places]


def training_examples(recipe: Recipe, seed: int, step: int) -> list[Example]:
    """Draw the examples of a batch from the recipe's sizes, the seed and the step alone.

    Args:
        recipe: The recipe of the training.
        seed: Seed of the training.
        step: Number of the batch.

    Returns:
        One batch of examples, over all algorithms and sizes.
    """
    rng = np.random.default_rng((_CHOICE, seed, step))
    near = np.random.default_rng((_TIES, seed, step))
    names = [name for name in recipe.lengths for _ in range(1 if name in SORTS else recipe.repeats)]
    grown = min(1.0, (step + 1) / max(1.0, recipe.curriculum * recipe.steps))
    drawn = []
    for number in range(recipe.batch):
        name = names[rng.integers(len(names))]
        smallest, largest = recipe.lengths[name]
        reached = smallest + math.ceil(grown * (largest - smallest))
        length = int(rng.integers(smallest, reached + 1))
        index = step * recipe.batch + number
        close = name in WITH_TIES and near.random() < recipe.ties
        drawn.append(example(name, length, seed=seed, index=index, ties=close))
    return drawn


class TrainingData:
    """The batches of a training, optionally kept in a folder for other trainings.

    Drawing takes about a quarter of the time of a training, because dm-clrs runs the algorithm for
    every example.

    Args:
        recipe: The recipe of the training.
        seed: Seed of the training.
        folder: Where to keep drawn batches; None draws every batch anew.
    """

    def __init__(self, recipe: Recipe, seed: int, folder: Path | None = None) -> None:
        self._recipe = recipe
        self._seed = seed
        # Everything that `training_examples` depends on.
        described = recipe.to_dict()
        names = ("lengths", "batch", "curriculum", "steps", "ties", "repeats")
        text = json.dumps([described[name] for name in names])
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        self._folder = folder / f"{digest}-seed-{seed}" if folder else None
        self._file = -1
        self._batches: list[list[Example]] = []

    def __call__(self, step: int) -> list[Example]:
        """Return the examples of a batch."""
        if self._folder is None:
            return training_examples(self._recipe, self._seed, step)
        file, place = divmod(step, _BATCHES_PER_FILE)
        if file != self._file:
            self._batches = self._read(self._folder / f"{file:05}.json", file)
            self._file = file
        return self._batches[place]

    def _read(self, path: Path, file: int) -> list[list[Example]]:
        """Read the batches of a file, or draw and write them."""
        if path.exists():
            kept = read_sealed(path, _KIND)["batches"]
            return [[Example(*one) for one in batch] for batch in kept]
        first = file * _BATCHES_PER_FILE
        steps = range(first, min(first + _BATCHES_PER_FILE, self._recipe.steps))
        drawn = [training_examples(self._recipe, self._seed, step) for step in steps]
        # Two trainings that draw the same file at the same time write the same content.
        write_sealed(path, _KIND, {"batches": [[astuple(one) for one in each] for each in drawn]})
        return drawn


def batches(encoded: Sequence[Encoded], tokens: float) -> Iterator[tuple[list[int], Batch]]:
    """Group examples of similar length into batches.

    Args:
        encoded: The examples.
        tokens: Largest number of tokens in a batch, padding included; a single example may exceed
            it.

    Yields:
        The indices of the examples in a batch, and the batch.
    """
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index].tokens))
    part: list[int] = []
    for index in order:
        # In this order the newest example is the longest.
        if part and (len(part) + 1) * len(encoded[index].tokens) > tokens:
            yield part, _batch([encoded[each] for each in part])
            part = []
        part.append(index)
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
