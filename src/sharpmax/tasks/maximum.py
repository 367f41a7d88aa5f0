"""The prompt of the paper's Figure 3: which is the maximum of a sequence of numbers?"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode

__all__ = ["maximum", "maximum_of_length", "maximum_prompt"]

_LARGEST = 9999


def maximum_prompt(numbers: Sequence[int]) -> str:
    """The prompt for some numbers.

    Example:
        >>> maximum_prompt([3, 41, 7])
        'What is the maximum in the following sequence: 3, 41, 7? The maximum is:'
    """
    sequence = ", ".join(map(str, numbers))
    return f"What is the maximum in the following sequence: {sequence}? The maximum is:"


def maximum(
    tokenizer: Tokenizer,
    elements: int,
    *,
    questions: int,
    seed: int,
    largest: int = _LARGEST,
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions about sequences of so many different numbers.

    Args:
        tokenizer: Of the model.
        elements: Numbers in a sequence.
        questions: How many.
        seed: The same seed gives the same questions.
        largest: Largest number that may occur.
        prefix: Tokens that begin every prompt.

    Returns:
        The questions; their length in tokens is what the numbers make of it.

    Raises:
        ValueError: There are not that many different numbers.
    """
    if not 1 <= elements <= largest + 1:
        raise ValueError(f"elements: expected from 1 to {largest + 1}, got {elements}")
    rng = np.random.default_rng(seed)
    return [
        _question(
            tokenizer, rng.choice(largest + 1, elements, replace=False).tolist(), context, prefix
        )
        for context in range(questions)
    ]


def maximum_of_length(
    tokenizer: Tokenizer,
    length: int,
    *,
    questions: int,
    seed: int,
    largest: int = _LARGEST,
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions whose prompts have exactly so many tokens.

    A sequence has as many numbers as there is room for; the rest of the room is taken by empty
    lines before the prompt.

    Args:
        tokenizer: Of the model.
        length: Tokens of a prompt.
        questions: How many.
        seed: The same seed gives the same questions.
        largest: Largest number that may occur.
        prefix: Tokens that begin every prompt.

    Returns:
        The questions.

    Raises:
        ValueError: There is no room for a single number.
    """
    rng = np.random.default_rng(seed)
    space = encode(tokenizer, "\n") * length
    drawn = []
    for context in range(questions):
        # Every number takes a token at least.
        numbers = rng.permutation(largest + 1)[:length].tolist()

        def size(elements: int, numbers: list[int] = numbers) -> int:
            return len(prefix) + len(encode(tokenizer, maximum_prompt(numbers[:elements])))

        elements = bisect_right(range(len(numbers) + 1), length, key=size) - 1
        if elements < 1:
            raise ValueError(f"length: expected room for a number, {size(1)} tokens, got {length}")
        empty = space[: length - size(elements)]
        drawn.append(_question(tokenizer, numbers[:elements], context, (*prefix, *empty)))
    return drawn


def _question(
    tokenizer: Tokenizer, numbers: list[int], context: int, before: Sequence[int]
) -> Question:
    best = max(numbers)
    return Question(
        ids=(*before, *encode(tokenizer, maximum_prompt(numbers))),
        answer=str(best),
        answer_ids=encode(tokenizer, f" {best}"),
        wording=0,
        context=context,
        depth=numbers.index(best) / max(1, len(numbers) - 1),
    )
