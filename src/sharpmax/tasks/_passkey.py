"""Passkey: a number is hidden in a text, and the question at the end asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks import _questions as q
from sharpmax.tasks._questions import Question, Tokenizer, encode

WORDINGS = (
    ("\nThe pass key is {key}. Remember it.\n", "\nWhat is the pass key? The pass key is"),
    ("\nNote: the secret number of the day is {key}.\n", "\nThe secret number of the day is"),
    ("\nThe safe was closed with the combination {key}.\n", "\nThe combination of the safe is"),
    ("\n(My locker opens with the code {key}.)\n", "\nThe code of my locker is"),
    ("\nHer ticket bore the number {key}.\n", "\nThe number on her ticket was"),
)
"""Pairs of the line that hides the number and the question that asks for it."""

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
    """Draw passkey questions whose prompts have exactly `length` tokens.

    Args:
        tokenizer: Tokenizer of the model.
        texts: Texts to hide the number in.
        length: Tokens per prompt.
        questions: Number of questions.
        seed: The same seed gives the same questions.
        contexts: Number of passages; the questions take them in turn.
        wordings: Indices of the wordings to use in turn, from 0 to 4; 3 and 4 are `UNSEEN`.
        prefix: Tokens at the start of every prompt, as `start_tokens` finds them.

    Returns:
        The questions, with depths spread evenly over the text.

    Raises:
        ValueError: There are no texts, a text is too short, or the length is too small.
    """
    stretches = q.fillers(tokenizer, texts, length, contexts, seed)
    rng = np.random.default_rng(seed)
    # Every depth equally often, in random order.
    depths = rng.permutation((np.arange(questions) + 0.5) / max(1, questions))
    drawn = []
    for number, depth in enumerate(depths.tolist()):
        context = number % contexts
        # One wording per turn of the contexts, so that each context gets all wordings.
        wording = wordings[number // contexts % len(wordings)]
        key = q.random_digits(rng, _DIGITS)
        hidden, asked = WORDINGS[wording]
        needle, question = encode(tokenizer, hidden.format(key=key)), encode(tokenizer, asked)
        around = q.take(stretches[context], length, prefix, needle, question)
        at = round(depth * len(around))
        ids = (*prefix, *around[:at], *needle, *around[at:], *question)
        drawn.append(q.make_question(tokenizer, ids, key, wording, context, depth))
    return drawn
