"""Places of numbers: the row of a matrix, the index in a list, the character within a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["CHARACTERS", "PLACES", "Place", "PlaceEmbedding", "place_number", "places_of"]

PLACES = 300
"""Places in a list: up to 297 numbers, two brackets, and 0 for tokens outside lists."""

CHARACTERS = 7
"""Characters of a number: a sign, a digit, a point and three digits; and 0 for other tokens."""

_OF_NUMBERS = frozenset("-.0123456789")


class Place(NamedTuple):
    """The place of a token.

    Attributes:
        row: Row of a matrix, from 1; 0 outside matrices.
        place: Place in a list: 1 is the bracket, 2 the first number; 0 outside lists.
        character: Place within a number, from 1; 0 outside numbers, and where a number is one
            token.
    """

    row: int = 0
    place: int = 0
    character: int = 0


def place_number(place: Place) -> int:
    """Return a unique number for a place; 0 is no place."""
    return (place.row * PLACES + place.place) * CHARACTERS + place.character


def places_of(texts: Sequence[str], *, characters: bool) -> Iterator[Place]:
    """Find the place of each token in a question or an answer, from the tokens before it alone.

    Args:
        texts: The text of each token.
        characters: Whether tokens are characters, so that a number may have several.

    Yields:
        The places.

    Example:
        >>> def shown(texts, **kind):
        ...     return [tuple(place) for place in places_of(texts, **kind)]
        >>> shown(["s", ":", "[", "0.25", " 0.3", "]", ",", " 2"], characters=False)
        [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 4, 0), (0, 0, 0), (0, 0, 0)]
        >>> [place for _, place, _ in places_of("[1 25]", characters=True)]
        [1, 2, 3, 3, 3, 4]
        >>> [character for *_, character in places_of("[1 25], 0.5", characters=True)]
        [0, 1, 0, 1, 2, 0, 0, 0, 1, 2, 3]
        >>> [row for row, *_ in places_of("[[1], [2]]", characters=True)]
        [0, 1, 1, 1, 0, 0, 2, 2, 2, 0]
    """
    depth = row = place = character = 0
    for text in texts:
        if text == "[":
            depth, place = depth + 1, 1
            row += depth == 2
        elif text == "]" or (place and text.startswith(" ")):
            place += bool(place)
        elif place == 1:
            # Only the first number has no space before it.
            place = 2
        character = min(character + 1, CHARACTERS - 1) if characters and text in _OF_NUMBERS else 0
        yield Place(row if depth == 2 else 0, min(place, PLACES - 1), character)
        if text == "]":
            depth, place = depth - 1, 0
            row = row if depth else 0


class PlaceEmbedding(nn.Module):
    """Fixed vectors of places, added to the embeddings of tokens.

    Entry 0 of each table adds nothing, because 0 means that a token has no such place.

    Args:
        rows: Vectors of rows, at most [`PLACES`, width].
        places: Vectors of places in a list, at most [`PLACES`, width].
        characters: Vectors of places within a number, [`CHARACTERS`, width].
    """

    rows: Tensor
    places: Tensor
    characters: Tensor

    def __init__(self, rows: Tensor, places: Tensor, characters: Tensor) -> None:
        super().__init__()
        for name, table in (("rows", rows), ("places", places), ("characters", characters)):
            nothing = torch.zeros_like(table[:1])
            # Not saved with the weights: the seed of the training gives them again.
            self.register_buffer(name, torch.cat([nothing, table[1:]]), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the vectors of places given by `place_number`, [..., width]."""
        rest, character = numbers // CHARACTERS, numbers % CHARACTERS
        row, place = rest // PLACES, rest % PLACES
        return self.rows[row] + self.places[place] + self.characters[character]
