"""Questions in text whose length in tokens is exact, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = [
    "SEEN",
    "UNSEEN",
    "Question",
    "Tokenizer",
    "encode",
    "fillers",
    "random_digits",
    "start_tokens",
    "take",
]

SEEN = (0, 1, 2)
"""The wordings of `passkey` and `key_value` that calibrations are fitted on."""

UNSEEN = (3, 4)
"""The wordings that no calibration is fitted on, to test whether a gain carries over to them."""


class Tokenizer(Protocol):
    """The methods that tasks need of a tokenizer; those of Hugging Face have them."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Convert text to token ids."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Convert token ids to text."""


@dataclass(frozen=True)
class Question:
    """A prompt and its answer.

    Attributes:
        ids: The prompt, as token ids.
        answer: The answer, as text.
        answer_ids: The answer, as the token ids that continue the prompt.
        wording: Index of the wording among those of the task.
        context: Number of the text or sequence around the question. Questions of one context are
            not independent of each other.
        depth: Position of the answer in the prompt, from 0 to 1.
    """

    ids: tuple[int, ...]
    answer: str
    answer_ids: tuple[int, ...]
    wording: int
    context: int
    depth: float


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Convert text to token ids, without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def start_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Find the tokens that a tokenizer puts before every text.

    Most models expect them, so they belong at the start of every prompt.

    Args:
        tokenizer: Tokenizer of the model.

    Returns:
        The token ids; none for a tokenizer that adds nothing.
    """
    alone = encode(tokenizer, "a")
    whole = tuple(tokenizer.encode("a", add_special_tokens=True))
    where = next((at for at in range(len(whole)) if whole[at : at + len(alone)] == alone), 0)
    return whole[:where]


def take(filler: Sequence[int], length: int, *parts: Sequence[int]) -> tuple[int, ...]:
    """Take as much filler as a prompt of exactly `length` tokens needs besides its other parts.

    Args:
        filler: Tokens to take from the front of.
        length: Tokens in the prompt.
        *parts: The other parts of the prompt.

    Returns:
        The filler.

    Raises:
        ValueError: The parts alone are longer than `length`, or the filler is too short.

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
    """Draw passages to hide something in, one per context.

    Args:
        tokenizer: Tokenizer of the model.
        texts: Texts to draw from, in turn.
        length: Tokens per passage.
        contexts: Number of passages.
        seed: Seed for the position of each passage.

    Raises:
        ValueError: There are no texts, or a text is too short.
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


def random_digits(rng: np.random.Generator, count: int) -> str:
    """Draw a number with a fixed count of digits."""
    return "".join(map(str, rng.integers(10, size=count)))
