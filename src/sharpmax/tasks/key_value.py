"""Key-value retrieval: several keys with a number each are hidden in a text; one is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode, fillers, take

__all__ = ["UNSEEN", "WORDINGS", "key_value"]

WORDINGS = (
    ("\nThe number of {key} is {value}.\n", "\nThe number of {key} is"),
    ("\nNote: {key} has the code {value}.\n", "\nThe code of {key} is"),
    ("\nOn the list, {key} stands under {value}.\n", "\nOn the list, {key} stands under"),
    ("\n[{key} = {value}]\n", "\n[{key} ="),
    ("\nTo reach {key}, dial {value}.\n", "\nThe number to dial for {key} is"),
)
"""How a pair is hidden, and how its value is asked for."""

UNSEEN = (3, 4)
"""The wordings that nothing is to be fitted on, for the question whether a gain is one of them."""

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_DIGITS = 4


def key_value(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    length: int,
    *,
    questions: int,
    seed: int,
    contexts: int = 16,
    pairs: int = 8,
    wordings: Sequence[int] = (0,),
    prefix: Sequence[int] = (),
) -> list[Question]:
    """Draw questions whose prompts have exactly so many tokens.

    The number of pairs is the same at every length, so that what grows is the text around them and
    not the number of answers to choose from.

    Args:
        tokenizer: Of the model.
        texts: What to hide the pairs in.
        length: Tokens of a prompt.
        questions: How many.
        seed: The same seed gives the same questions.
        contexts: How many stretches of the texts are used, each with pairs of its own; the
            questions take them in turn.
        pairs: In a context.
        wordings: Which of `WORDINGS` to use; a context has one.
        prefix: Tokens that begin every prompt.

    Returns:
        The questions. Those of a context share their prompts but for the last line.

    Raises:
        ValueError: There are no texts, a text is too short, or the length too small.
    """
    stretches = fillers(tokenizer, texts, length, contexts, seed)
    drawn = []
    for number in range(questions):
        context, turn = number % contexts, number // contexts % pairs
        wording = wordings[context % len(wordings)]
        line, asked = WORDINGS[wording]
        rng = np.random.default_rng((seed, context))
        known = _pairs(rng, pairs)
        # Asked in no order, so that questions of fewer turns still are of all depths.
        chosen = int(rng.permutation(pairs)[turn])
        lines = [encode(tokenizer, line.format(key=key, value=value)) for key, value in known]
        every = [encode(tokenizer, asked.format(key=key)) for key, _ in known]
        question = every[chosen]
        # As if the longest of the questions were asked: so the text is the same for all of them.
        longest = max(every, key=len)
        around = take(stretches[context], length, prefix, *lines, longest)
        cuts = [round((place + 0.5) / pairs * len(around)) for place in range(pairs)]
        body: list[int] = []
        for start, stop, hidden in zip([0, *cuts], cuts, lines, strict=False):
            body += [*around[start:stop], *hidden]
        body += around[cuts[-1] :]
        more = stretches[context][len(around) :][: len(longest) - len(question)]
        drawn.append(
            Question(
                ids=(*prefix, *body, *more, *question),
                answer=known[chosen][1],
                answer_ids=encode(tokenizer, f" {known[chosen][1]}"),
                wording=wording,
                context=context,
                depth=(chosen + 0.5) / pairs,
            )
        )
    return drawn


def _pairs(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Different keys that can be spoken, each with a number."""
    letters = [_CONSONANTS, _VOWELS] * 3
    keys: dict[str, None] = {}
    while len(keys) < count:
        keys["".join(kind[rng.integers(len(kind))] for kind in letters).capitalize()] = None
    return [(key, "".join(map(str, rng.integers(10, size=_DIGITS)))) for key in keys]
