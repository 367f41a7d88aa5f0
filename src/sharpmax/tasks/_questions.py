"""Questions in text whose length in tokens is exact, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

SEEN = (0, 1, 2)
"""The wordings of `passkey` and `key_value` that calibrations are fitted on."""

UNSEEN = (3, 4)
"""The wordings that no calibration is fitted on, to test whether a gain carries over to them."""


class Tokenizer(Protocol):
    """The method that tasks need of a tokenizer; those of Hugging Face have it."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Convert text to token ids."""


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


def make_question(
    tokenizer: Tokenizer, ids: Sequence[int], answer: str, wording: int, context: int, depth: float
) -> Question:
    """Make a question whose answer follows the prompt after a space."""
    return Question(tuple(ids), answer, encode(tokenizer, f" {answer}"), wording, context, depth)


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Convert text to token ids, without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def start_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Find the tokens that a tokenizer puts before every text, and that most models expect.

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
    """Take as much filler as a prompt of exactly `length` tokens needs besides its other parts."""
    room = length - sum(map(len, parts))
    if room < 0:
        raise ValueError(f"length: expected at least {length - room} tokens, got {length}")
    return tuple(filler[:room])


def fillers(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, contexts: int, seed: int
) -> list[tuple[int, ...]]:
    """Draw passages of `length` tokens to hide something in, from texts in turn."""
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    whole = [encode(tokenizer, text) for text in texts]
    rng = np.random.default_rng(seed)
    found = []
    for context in range(contexts):
        number = context % len(whole)
        tokens = whole[number]
        if len(tokens) < length:
            expected = f"expected at least {length} tokens, got {len(tokens)}"
            raise ValueError(f"texts[{number}]: {expected}; give a longer text")
        start = int(rng.integers(len(tokens) - length + 1))
        found.append(tokens[start : start + length])
    return found


def random_digits(rng: np.random.Generator, count: int) -> str:
    """Draw a number with a fixed count of digits."""
    return "".join(map(str, rng.integers(10, size=count)))


def own_source() -> str:
    """Return the source code of sharpmax, with its files in alphabetical order.

    It is English and Python, more than a hundred thousand tokens, and too recent for the training
    data of most models.

    Example:
        >>> "def own_source() -> str:" in own_source()
        True
    """
    root = Path(__file__).parent.parent
    files = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
