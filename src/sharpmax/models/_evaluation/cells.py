"""What models are asked: tasks by length and wording, on texts that are kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from sharpmax.models import Splits, Window
from sharpmax.tasks import (
    SEEN,
    UNSEEN,
    Question,
    Tokenizer,
    key_value,
    maximum_of_length,
    passkey,
    start_tokens,
)
from sharpmax.tasks._questions import encode

__all__ = [
    "TASKS",
    "WORDINGS",
    "Cell",
    "Task",
    "Wording",
    "cells_of",
    "check_texts",
    "fitting_splits",
    "questions",
    "windows",
]

Task = Literal["passkey", "key-value", "maximum", "text"]
TASKS: tuple[Task, ...] = get_args(Task)

Wording = Literal["usual", "unseen"]
WORDINGS: tuple[Wording, ...] = get_args(Wording)

# Contexts of a task at a length begin at a multiple of this, so that no two share a number.
_APART = 1_000_000


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a task at a length.

    Attributes:
        task: What is asked; "text" is the loss of the next token.
        length: Tokens of a prompt or of a window.
        wording: Of the questions: one that calibrations are fitted on, or those that none is.
    """

    task: Task
    length: int
    wording: Wording = "usual"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"tasks: expected some of {', '.join(TASKS)}, got {self.task!r}")


def cells_of(
    tasks: Sequence[Task], lengths: Sequence[int], wordings: Sequence[Wording] = WORDINGS
) -> list[Cell]:
    """All cells of some tasks at some lengths.

    Args:
        tasks: Which tasks.
        lengths: Tokens of the prompts or windows.
        wordings: How passkeys and pairs are asked for; the other tasks have one wording.

    Example:
        >>> [(cell.task, cell.wording) for cell in cells_of(["passkey", "text"], [512])]
        [('passkey', 'usual'), ('passkey', 'unseen'), ('text', 'usual')]
    """
    worded = ("passkey", "key-value")
    return [
        Cell(task, length, wording)
        for length in lengths
        for task in tasks
        for wording in (wordings if task in worded else WORDINGS[:1])
    ]


def questions(
    cell: Cell, tokenizer: Tokenizer, texts: Sequence[str], *, count: int, contexts: int, seed: int
) -> list[Question]:
    """The questions of a cell.

    Args:
        cell: Of another task than "text".
        tokenizer: Of the model.
        texts: What passkeys and pairs are hidden in.
        count: How many questions.
        contexts: How many stretches of the texts; maxima are each a context of their own.
        seed: The same seed gives the same questions.
    """
    options: dict[str, Any] = {"questions": count, "seed": seed, "prefix": start_tokens(tokenizer)}
    if cell.task == "maximum":
        return maximum_of_length(tokenizer, cell.length, **options)
    draw = passkey if cell.task == "passkey" else key_value
    wordings = UNSEEN if cell.wording == "unseen" else (0,)
    return draw(tokenizer, texts, cell.length, contexts=contexts, wordings=wordings, **options)


def windows(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, count: int, first: int = 1
) -> list[Window]:
    """Windows of texts without overlap, evenly spread over them.

    Args:
        tokenizer: Of the model.
        texts: The texts.
        length: Tokens of a window.
        count: How many at the most.
        first: The first token whose loss counts.

    Raises:
        ValueError: No text is as long as a window.
    """
    found: list[tuple[int, ...]] = []
    prefix = start_tokens(tokenizer)
    own = length - len(prefix)
    for text in texts:
        tokens = encode(tokenizer, text)
        found += [(*prefix, *tokens[at : at + own]) for at in range(0, len(tokens) - own + 1, own)]
    if not found:
        raise ValueError(f"texts: expected at least {length} tokens, the length of a window")
    count = min(count, len(found))
    chosen = [found[place * len(found) // count] for place in range(count)]
    return [Window(ids, context, first) for context, ids in enumerate(chosen)]


def check_texts(
    tokenizer: Tokenizer, texts: Mapping[str, str], longest: int, where: str = ""
) -> None:
    """See before the work whether texts are as long as the longest prompt.

    Args:
        tokenizer: Of the model.
        texts: By name.
        longest: Tokens of the longest prompt.
        where: What of a text is meant, if not all of it.

    Raises:
        ValueError: Naming the text, what was expected and what came.
    """
    for name, text in texts.items():
        got = len(encode(tokenizer, text))
        if got < longest:
            raise ValueError(
                f"{name}: expected at least {longest:,} tokens, the longest of the lengths{where}, "
                f"got {got:,}; give a longer text or shorter lengths"
            )


def fitting_splits(
    tokenizer: Tokenizer,
    texts: Splits[str],
    tasks: Sequence[Task],
    lengths: Sequence[int],
    *,
    contexts: tuple[int, int, int],
    seed: int,
) -> Splits[Question]:
    """Questions for fitting, choosing and testing a calibration, in wordings that are not unseen.

    Args:
        tokenizer: Of the model.
        texts: For each part its own.
        tasks: Which tasks, without "text".
        lengths: Tokens of the prompts; the tasks are asked at each.
        contexts: How many of each task and length the three parts have: one for a question of
            passkey or maximum, and one for all pairs of key-value.
        seed: The same seed gives the same questions.
    """
    parts: list[list[Question]] = []
    for number, (part, count) in enumerate(zip(vars(texts).values(), contexts, strict=True)):
        found: list[Question] = []
        for place, (task, length) in enumerate(product(tasks, lengths)):
            drawn = _drawn(tokenizer, part, task, length, count, seed * 3 + number)
            found += [replace(each, context=place * _APART + each.context) for each in drawn]
        parts.append(found)
    return Splits(*parts)


def _drawn(
    tokenizer: Tokenizer, texts: Sequence[str], task: Task, length: int, contexts: int, seed: int
) -> list[Question]:
    options: dict[str, Any] = {"seed": seed + 1000 * length, "prefix": start_tokens(tokenizer)}
    if task == "maximum":
        return maximum_of_length(tokenizer, length, questions=contexts, **options)
    if task == "passkey":
        options |= {"questions": contexts, "contexts": contexts}
        # A context has one question here, so the wordings are given by hand.
        drawn = [
            passkey(tokenizer, texts, length, wordings=(wording,), **options) for wording in SEEN
        ]
        return [drawn[place % len(SEEN)][place] for place in range(contexts)]
    pairs = 8
    return key_value(
        tokenizer, texts, length, questions=contexts * pairs, contexts=contexts, pairs=pairs,
        wordings=SEEN, **options,
    )  # fmt: skip
