"""Key-value retrieval: many pairs of a key and a number, and the question for one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.tasks.questions import Question, Tokenizer, encode, take

__all__ = ["WORDINGS", "key_value"]

WORDINGS = (
    ("Here is a list of keys and their values.\n", "{key}: {value}\n", "The value of {key} is"),
    ("The register:\n", "{key} has number {value}\n", "In the register, {key} has number"),
    ("# settings\n", "{key} = {value}\n", "# the setting of {key} is"),
)
"""The head of the list, a line of it, and how a value is asked for."""

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_DIGITS = 4


def key_value(
    tokenizer: Tokenizer,
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
        length: Tokens of a prompt.
        questions: How many.
        seed: The same seed gives the same questions.
        contexts: How many lists are drawn; the questions take them in turn.
        wordings: Which of `WORDINGS` to use, in turn.
        prefix: Tokens that begin every prompt.

    Returns:
        The questions, with depths spread evenly over the lists.

    Raises:
        ValueError: The length is too small for two pairs.
    """
    rng = np.random.default_rng(seed)
    depths = rng.permutation((np.arange(questions) + 0.5) / max(1, questions))
    space = encode(tokenizer, "\n") * length
    lists: dict[int, list[tuple[str, str]]] = {}
    drawn = []
    for number, depth in enumerate(depths.tolist()):
        context, wording = number % contexts, wordings[number % len(wordings)]
        begin, line, asked = WORDINGS[wording]
        # The list belongs to its context, whichever question is asked about it.
        if context not in lists:
            lists[context] = _pairs(np.random.default_rng((seed, context)), length)
        pairs = lists[context]
        head, lines = encode(tokenizer, begin), []
        longest = max(len(encode(tokenizer, asked.format(key=key))) for key, _ in pairs[:64])
        room = length - len(prefix) - len(head) - longest - 1
        for key, value in pairs:
            tokens = encode(tokenizer, line.format(key=key, value=value))
            if len(tokens) > room:
                break
            lines.append(tokens)
            room -= len(tokens)
        if len(lines) < 2:
            raise ValueError(f"length: expected room for two pairs, got {length} tokens")
        chosen = min(int(depth * len(lines)), len(lines) - 1)
        key, value = pairs[chosen]
        question = encode(tokenizer, asked.format(key=key))
        body = tuple(token for tokens in lines for token in tokens)
        drawn.append(
            Question(
                ids=(
                    *prefix,
                    *head,
                    *body,
                    *take(space, length, prefix, head, body, question),
                    *question,
                ),
                answer=value,
                answer_ids=encode(tokenizer, f" {value}"),
                wording=wording,
                context=context,
                depth=depth,
            )
        )
    return drawn


def _pairs(rng: np.random.Generator, most: int) -> list[tuple[str, str]]:
    """Different keys that can be spoken, each with a number."""
    letters = [_CONSONANTS, _VOWELS] * 3
    # More than are needed, since some keys come twice.
    draws = [rng.integers(len(kind), size=2 * most + 64) for kind in letters]
    keys = {
        "".join(kind[i] for kind, i in zip(letters, each, strict=True)): None
        for each in zip(*(draw.tolist() for draw in draws), strict=True)
    }
    values = rng.integers(10**_DIGITS, size=most).tolist()
    return [(key, f"{value:0{_DIGITS}d}") for key, value in zip(keys, values, strict=False)]
