"""Key-value retrieval: pairs are hidden in a text, and the question asks for one value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks import _questions as q
from sharpmax.tasks._questions import Question, Tokenizer, encode

WORDINGS = (
    ("\nThe number of {key} is {value}.\n", "\nThe number of {key} is"),
    ("\nNote: {key} has the code {value}.\n", "\nThe code of {key} is"),
    ("\nOn the list, {key} stands under {value}.\n", "\nOn the list, {key} stands under"),
    ("\n[{key} = {value}]\n", "\n[{key} ="),
    ("\nTo reach {key}, dial {value}.\n", "\nThe number to dial for {key} is"),
)
"""Pairs of the line that hides a pair and the question that asks for its value."""

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_DIGITS = 4
PAIRS = 8
"""Pairs per context."""


def key_value(
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
    """Draw key-value questions whose prompts have exactly `length` tokens.

    A context hides 8 pairs at every length: only the text around them grows. Arguments and errors
    are those of `passkey`, but a context keeps to one of the wordings.

    Returns:
        The questions. Prompts of one context differ in their last line alone.
    """
    stretches = q.fillers(tokenizer, texts, length, contexts, seed)
    drawn = []
    for number in range(questions):
        context, turn = number % contexts, number // contexts % PAIRS
        wording = wordings[context % len(wordings)]
        line, asked = WORDINGS[wording]
        rng = np.random.default_rng((seed, context))
        known = _pairs(rng)
        # In random order, so that a few questions still cover all depths.
        chosen = int(rng.permutation(PAIRS)[turn])
        lines = [encode(tokenizer, line.format(key=key, value=value)) for key, value in known]
        every = [encode(tokenizer, asked.format(key=key)) for key, _ in known]
        question = every[chosen]
        # Room for the longest question, so that the text is the same for all of them.
        longest = max(every, key=len)
        around = q.take(stretches[context], length, prefix, *lines, longest)
        cuts = [round((place + 0.5) / PAIRS * len(around)) for place in range(PAIRS)]
        body: list[int] = []
        for start, stop, hidden in zip([0, *cuts], cuts, lines, strict=False):
            body += [*around[start:stop], *hidden]
        body += around[cuts[-1] :]
        more = stretches[context][len(around) :][: len(longest) - len(question)]
        ids, depth = (*prefix, *body, *more, *question), (chosen + 0.5) / PAIRS
        answer = known[chosen][1]
        drawn.append(q.make_question(tokenizer, ids, answer, wording, context, depth))
    return drawn


def _pairs(rng: np.random.Generator) -> list[tuple[str, str]]:
    """Draw distinct pronounceable keys, each with a number."""
    letters = [_CONSONANTS, _VOWELS] * 3
    keys: dict[str, None] = {}
    while len(keys) < PAIRS:
        keys["".join(kind[rng.integers(len(kind))] for kind in letters).capitalize()] = None
    return [(key, q.random_digits(rng, _DIGITS)) for key in keys]
