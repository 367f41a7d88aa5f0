"""Where numbers stand: in which row of a matrix, at which place of a list, and their characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["CHARACTERS", "PLACES", "Place", "PlaceEmbedding", "place_number", "places_of"]

PLACES = 130
"""Places of a list: up to 127 numbers, the brackets around them, and 0 for what is in no list."""

CHARACTERS = 7
"""Characters of a number: a sign, a digit, a point and three digits; and 0 for all others."""

_OF_NUMBERS = frozenset("-.0123456789")


class Place(NamedTuple):
    """The place of a token.

    Attributes:
        row: Of a matrix, from 1 on; 0 outside of matrices.
        place: In the list: 1 is the bracket, 2 the first number; 0 outside of lists.
        character: In the number, from 1 on; 0 outside, and where a number is one token.
    """

    row: int = 0
    place: int = 0
    character: int = 0


def place_number(place: Place) -> int:
    """One number for a place, different for all; 0 is no place at all."""
    return (place.row * PLACES + place.place) * CHARACTERS + place.character


def places_of(texts: Sequence[str], *, characters: bool) -> Iterator[Place]:
    """The place of each token of a question or an answer; it depends on none that comes later.

    Args:
        texts: Of the tokens.
        characters: Whether these are characters, and a number may have several.

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
            # Numbers after the first have a space before them.
            place = 2
        character = min(character + 1, CHARACTERS - 1) if characters and text in _OF_NUMBERS else 0
        yield Place(row if depth == 2 else 0, min(place, PLACES - 1), character)
        if text == "]":
            depth, place = depth - 1, 0
            row = row if depth else 0


class PlaceEmbedding(nn.Module):
    """What is added to the embeddings of tokens: fixed vectors of their places.

    Args:
        rows: Of a matrix: [`PLACES`, width]. What is 0 in a place adds nothing, here and below.
        places: In a list: [`PLACES`, width].
        characters: In a number: [`CHARACTERS`, width].
    """

    rows: Tensor
    places: Tensor
    characters: Tensor

    def __init__(self, rows: Tensor, places: Tensor, characters: Tensor) -> None:
        super().__init__()
        for name, table in (("rows", rows), ("places", places), ("characters", characters)):
            nothing = torch.zeros_like(table[:1])
            # Made again from the seed of a training, so not a part of its weights.
            self.register_buffer(name, torch.cat([nothing, table[1:]]), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """The vectors of places, given by `place_number`: [..., width]."""
        rest, character = numbers // CHARACTERS, numbers % CHARACTERS
        row, place = rest // PLACES, rest % PLACES
        return self.rows[row] + self.places[place] + self.characters[character]
