"""Questions in text whose length in tokens is exact, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["Question", "Tokenizer", "encode", "fillers", "take"]


class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of Hugging Face have it."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Text to numbers of tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Numbers of tokens to text."""


@dataclass(frozen=True)
class Question:
    """A prompt and the answer that has to follow it.

    Attributes:
        ids: The prompt, in tokens.
        answer: The answer, as text.
        answer_ids: The answer, in the tokens that continue the prompt.
        wording: Which wording of the task it has.
        context: Number of the text or of the drawing around it: questions of one context are not
            independent.
        depth: Where in the prompt the answer is, from 0 to 1.
    """

    ids: tuple[int, ...]
    answer: str
    answer_ids: tuple[int, ...]
    wording: int
    context: int
    depth: float


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Text to numbers of tokens, without special ones."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def take(filler: Sequence[int], length: int, *parts: Sequence[int]) -> tuple[int, ...]:
    """As much filler as makes a prompt of some parts exactly so long.

    Args:
        filler: Tokens to take from, from the front.
        length: Tokens of the whole prompt.
        *parts: What else is in the prompt.

    Returns:
        The filler.

    Raises:
        ValueError: The parts alone are longer, or there is too little filler.

    Example:
        >>> take([7, 8, 9], 5, [1, 2], [3])
        (7, 8)
    """
    room = length - sum(map(len, parts))
    if room < 0:
        raise ValueError(f"length: expected at least {length - room} tokens, got {length}")
    if room > len(filler):
        raise ValueError(
            f"filler: expected at least {room} tokens for a length of {length}, got {len(filler)}; "
            "give a longer text"
        )
    return tuple(filler[:room])


def fillers(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, contexts: int, seed: int
) -> list[tuple[int, ...]]:
    """Stretches of texts to hide something in, one a context.

    Args:
        tokenizer: Of the model.
        texts: Taken in turn.
        length: Tokens of a stretch.
        contexts: How many.
        seed: Of the places where they begin.

    Raises:
        ValueError: There are no texts, or one is too short.
    """
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    whole = [encode(tokenizer, text) for text in texts]
    rng = np.random.default_rng(seed)
    found = []
    for context in range(contexts):
        tokens = whole[context % len(whole)]
        spare = len(tokens) - length
        if spare < 0:
            raise ValueError(
                f"texts[{context % len(whole)}]: expected at least {length} tokens, got "
                f"{len(tokens)}; give a longer text"
            )
        start = int(rng.integers(spare + 1))
        found.append(tokens[start : start + length])
    return found
