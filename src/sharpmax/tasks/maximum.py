"""The prompt of the paper's Figure 3: which is the maximum of a sequence of numbers?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode

__all__ = ["maximum", "maximum_prompt"]


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
    largest: int = 9999,
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
    drawn = []
    for number in range(questions):
        numbers = rng.choice(largest + 1, elements, replace=False).tolist()
        best = max(numbers)
        drawn.append(
            Question(
                ids=(*prefix, *encode(tokenizer, maximum_prompt(numbers))),
                answer=str(best),
                answer_ids=encode(tokenizer, f" {best}"),
                wording=0,
                context=number,
                depth=numbers.index(best) / max(1, elements - 1),
            )
        )
    return drawn
