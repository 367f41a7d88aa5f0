"""What a model is asked: one cell for each task, length and wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from sharpmax._settings import LENGTHS, TASKS, WORDINGS, Task, Wording
from sharpmax.models._calibration.objectives import Window
from sharpmax.models._inspect import check_items, check_positions, positions
from sharpmax.tasks import (
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
    "Cell",
    "cells_of",
    "check_cells",
    "check_texts",
    "default_lengths",
    "items",
    "questions",
    "windows",
]

_ANSWER_ROOM = 32
"""Tokens that default lengths leave for the answer."""


@dataclass(frozen=True)
class Cell:
    """A task at one length and in one wording.

    Attributes:
        task: What is asked; "text" is the loss per token.
        length: Tokens per prompt or window.
        wording: Wording of the questions.
    """

    task: Task
    length: int
    wording: Wording = "usual"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("tasks", self.task, TASKS),
            ("wordings", self.wording, WORDINGS),
        ):
            if value not in known:
                raise ValueError(f"{name}: expected some of {', '.join(known)}, got {value!r}")

    def __str__(self) -> str:
        wording = ", unseen wording" if self.wording == "unseen" else ""
        return f"{self.task} at {self.length:,}{wording}"


def cells_of(
    tasks: Sequence[Task], lengths: Sequence[int], wordings: Sequence[Wording] = WORDINGS
) -> list[Cell]:
    """List the cells of some tasks at some lengths.

    Args:
        tasks: The tasks.
        lengths: Tokens per prompt or window.
        wordings: Wordings of passkey and key-value; the other tasks have one wording.

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


def default_lengths(model: PreTrainedModel) -> tuple[int, ...]:
    """Choose the default lengths that the positions of a model allow.

    Args:
        model: The model. If it is too short for all of the defaults, the longest prompt that leaves
            room for an answer.
    """
    limit = positions(model)
    if limit is None:
        return LENGTHS
    most = limit - _ANSWER_ROOM
    return tuple(length for length in LENGTHS if length <= most) or (most,)


def items(
    cell: Cell,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    model: PreTrainedModel,
    *,
    count: int,
    contexts: int,
    window_count: int,
    seed: int,
) -> list[Any]:
    """Draw the questions or windows of a cell, and check that the model can read them.

    Args:
        cell: The cell.
        tokenizer: Tokenizer of the model.
        texts: Texts for the questions or windows.
        model: The model.
        count: Number of questions.
        contexts: Number of passages.
        window_count: Number of windows, at most.
        seed: The same seed gives the same questions.

    Raises:
        ValueError: A text or a length is too short, or the model has too few positions.
    """
    drawn: list[Any]
    if cell.task == "text":
        drawn = windows(tokenizer, texts, cell.length, window_count)
    else:
        drawn = questions(cell, tokenizer, texts, count=count, contexts=contexts, seed=seed)
    check_items(model, "lengths", drawn)
    return drawn


def questions(
    cell: Cell, tokenizer: Tokenizer, texts: Sequence[str], *, count: int, contexts: int, seed: int
) -> list[Question]:
    """Draw the questions of a cell.

    Args:
        cell: A cell of a task other than "text".
        tokenizer: Tokenizer of the model.
        texts: Texts that hide passkeys and pairs.
        count: Number of questions.
        contexts: Number of passages; every maximum is its own context.
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
    """Cut windows from texts, without overlap and evenly spread.

    Args:
        tokenizer: Tokenizer of the model.
        texts: The texts.
        length: Tokens per window.
        count: Number of windows, at most.
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
    """Check that texts are as long as the longest prompt.

    Args:
        tokenizer: Tokenizer of the model.
        texts: Texts by name.
        longest: Tokens of the longest prompt.
        where: Which part of a text is meant, for the message.

    Raises:
        ValueError: A text is too short.
    """
    for name, text in texts.items():
        got = len(encode(tokenizer, text))
        if got < longest:
            raise ValueError(
                f"{name}: expected at least {longest:,} tokens{where}, the longest of the lengths, "
                f"got {got:,}; give a longer text or shorter lengths"
            )


def check_cells(
    model: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str], cells: Sequence[Cell]
) -> None:
    """Check in advance that all cells can be asked, since an evaluation may take hours.

    Args:
        model: The model.
        tokenizer: Tokenizer of the model.
        texts: The texts.
        cells: The cells.

    Raises:
        ValueError: A text or a length is too short, or the model has too few positions.
    """
    longest = max(cell.length for cell in cells)
    check_positions(model, "lengths", longest)
    # Encoding a long text takes time, and a prompt needs only the start of it.
    texts = [text[: 64 * longest] for text in texts]
    for cell in cells:
        # Two contexts with two questions each show all wordings of a cell.
        items(cell, tokenizer, texts, model, count=4, contexts=2, window_count=1, seed=0)
