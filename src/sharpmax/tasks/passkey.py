"""Passkey: a number is hidden in a text and asked for at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode, fillers, take

__all__ = ["UNSEEN", "WORDINGS", "passkey"]

WORDINGS = (
    ("\nThe pass key is {key}. Remember it.\n", "\nWhat is the pass key? The pass key is"),
    ("\nNote: the secret number of the day is {key}.\n", "\nThe secret number of the day is"),
    ("\nThe safe was closed with the combination {key}.\n", "\nThe combination of the safe is"),
    ("\n(My locker opens with the code {key}.)\n", "\nThe code of my locker is"),
    ("\nHer ticket bore the number {key}.\n", "\nThe number on her ticket was"),
)
"""How the number is hidden, and how it is asked for; the first is the usual one."""

UNSEEN = (3, 4)
"""The wordings that nothing is to be fitted on, for the question whether a gain is one of them."""

_DIGITS = 5


def passkey(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    length: int,
    *,
    questions: int,
    seed: int,
    contexts: int = 16,
    wordings: Sequence[int] = (0,),
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions whose prompts have exactly so many tokens.

    Args:
        tokenizer: Of the model.
        texts: What to hide the number in.
        length: Tokens of a prompt.
        questions: How many.
        seed: The same seed gives the same questions.
        contexts: How many stretches of the texts are used; the questions take them in turn.
        wordings: Which of `WORDINGS` to use, in turn.
        prefix: Tokens that begin every prompt, for instance the one that begins a text.

    Returns:
        The questions, with depths spread evenly over the text.

    Raises:
        ValueError: There are no texts, a text is too short, or the length too small.
    """
    stretches = fillers(tokenizer, texts, length, contexts, seed)
    rng = np.random.default_rng(seed)
    # Every depth as often as any other, in no order.
    depths = rng.permutation((np.arange(questions) + 0.5) / max(1, questions))
    drawn = []
    for number, depth in enumerate(depths.tolist()):
        context = number % contexts
        # A wording for each turn of the contexts, so that each context has them all.
        wording = wordings[number // contexts % len(wordings)]
        key = "".join(map(str, rng.integers(10, size=_DIGITS)))
        hidden, asked = WORDINGS[wording]
        needle, question = encode(tokenizer, hidden.format(key=key)), encode(tokenizer, asked)
        around = take(stretches[context], length, prefix, needle, question)
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
