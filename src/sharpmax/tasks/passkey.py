"""Passkey: a number is hidden in a text and asked for at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode, take

__all__ = ["WORDINGS", "passkey"]

WORDINGS = (
    ("\nThe pass key is {key}. Remember it. {key} is the pass key.\n", "\nThe pass key is"),
    ("\nNote: the secret number of the day is {key}.\n", "\nThe secret number of the day is"),
    ("\n(My locker opens with the code {key}.)\n", "\nThe code of my locker is"),
)
"""How the number is hidden, and how it is asked for; the first is the usual one."""

_DIGITS = 5


def passkey(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    length: int,
    *,
    questions: int,
    seed: int,
    wordings: Sequence[int] = (0,),
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions whose prompts have exactly so many tokens.

    Args:
        tokenizer: Of the model.
        texts: What to hide the number in; the questions take them in turn, each from a place of
            its own.
        length: Tokens of a prompt.
        questions: How many.
        seed: The same seed gives the same questions.
        wordings: Which of `WORDINGS` to use, in turn.
        prefix: Tokens that begin every prompt, for instance the one that begins a text.

    Returns:
        The questions, with depths spread evenly over the text.

    Raises:
        ValueError: There are no texts, a text is too short, or the length too small.
    """
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    rng = np.random.default_rng(seed)
    fillers = [encode(tokenizer, text) for text in texts]
    # Every depth as often as any other, in no order.
    depths = rng.permutation((np.arange(questions) + 0.5) / max(1, questions))
    drawn = []
    for number, depth in enumerate(depths.tolist()):
        context, wording = number % len(texts), wordings[number % len(wordings)]
        key = "".join(map(str, rng.integers(10, size=_DIGITS)))
        hidden, asked = WORDINGS[wording]
        needle, question = encode(tokenizer, hidden.format(key=key)), encode(tokenizer, asked)
        filler = fillers[context]
        spare = len(filler) + len(prefix) + len(needle) + len(question) - length
        start = int(rng.integers(spare + 1)) if spare > 0 else 0
        around = take(filler[start:], length, prefix, needle, question)
        at = round(depth * len(around))
        drawn.append(
            Question(
                ids=(*prefix, *around[:at], *needle, *around[at:], *question),
                answer=key,
                answer_ids=encode(tokenizer, f" {key}"),
                wording=wording,
                context=context,
                depth=depth,
            )
        )
    return drawn
