"""Maximum: the prompt of the paper's Figure 3 asks for the largest of some numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from sharpmax.tasks._questions import Question, Tokenizer, encode, make_question

_NUMBERS = 10_000


def maximum_prompt(numbers: Sequence[int]) -> str:
    """Write the prompt for some numbers.

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
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions about sequences of distinct numbers from 0 to 9,999.

    Args:
        tokenizer: Tokenizer of the model.
        elements: Numbers per sequence.
        questions: Number of questions.
        seed: The same seed gives the same questions.
        prefix: Tokens at the start of every prompt, as `start_tokens` finds them.

    Returns:
        The questions. Their length in tokens depends on the numbers.

    Raises:
        ValueError: There are fewer distinct numbers than elements.
    """
    if not 1 <= elements <= _NUMBERS:
        raise ValueError(f"elements: expected from 1 to {_NUMBERS}, got {elements}")
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(_NUMBERS, elements, replace=False).tolist() for _ in range(questions)]
    return [_question(tokenizer, each, number, prefix) for number, each in enumerate(drawn)]


def maximum_of_length(
    tokenizer: Tokenizer,
    length: int,
    *,
    questions: int,
    seed: int,
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions whose prompts have exactly `length` tokens.

    A sequence has as many numbers as fit. Empty lines before the prompt fill the remaining tokens.
    The other arguments are those of `maximum`.

    Raises:
        ValueError: Not even one number fits.
    """
    rng = np.random.default_rng(seed)
    space = encode(tokenizer, "\n") * length
    drawn = []
    for context in range(questions):
        # Every number takes at least one token.
        numbers = rng.permutation(_NUMBERS)[:length].tolist()

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
    ids = (*before, *encode(tokenizer, maximum_prompt(numbers)))
    depth = numbers.index(max(numbers)) / max(1, len(numbers) - 1)
    return make_question(tokenizer, ids, str(max(numbers)), 0, context, depth)
