"""What a model is asked: one cell for each task, length and wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharpmax import tasks as drawing
from sharpmax._settings import LENGTHS, METRIC, TASKS, WORDINGS, EvaluationSettings, Task, Wording
from sharpmax.models._calibration.objectives import Window
from sharpmax.models._inspect import check_items, check_positions, positions
from sharpmax.tasks import Question, Tokenizer, start_tokens
from sharpmax.tasks._questions import encode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ANSWER_ROOM = 32
"""Tokens that default lengths leave for the answer."""


@dataclass(frozen=True)
class Cell:
    """A task at one length and in one wording."""

    task: Task
    length: int  # tokens per prompt or window
    wording: Wording = "usual"

    def __post_init__(self) -> None:
        known = {"tasks": (self.task, (*TASKS, METRIC)), "wordings": (self.wording, WORDINGS)}
        for name, (value, expected) in known.items():
            if value not in expected:
                raise ValueError(f"{name}: expected some of {', '.join(expected)}, got {value!r}")

    def __str__(self) -> str:
        wording = ", unseen wording" if self.wording == "unseen" else ""
        return f"{self.task} at {self.length:,}{wording}"


def cells_of(
    tasks: Sequence[Task], lengths: Sequence[int], wordings: Sequence[Wording] = WORDINGS
) -> list[Cell]:
    """List the cells of some tasks at some lengths; only passkey and key-value have wordings.

    Example:
        >>> [(cell.task, cell.wording) for cell in cells_of(["passkey", "text"], [512])]
        [('passkey', 'usual'), ('passkey', 'unseen'), ('text', 'usual')]
    """
    return [
        Cell(task, length, wording)
        for length in lengths
        for task in tasks
        for wording in (wordings if task in ("passkey", "key-value") else WORDINGS[:1])
    ]


def default_lengths(model: PreTrainedModel) -> tuple[int, ...]:
    """Choose the default lengths that a model allows, or the longest that leaves room to answer."""
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
    settings: EvaluationSettings,
) -> list[Any]:
    """Draw the questions or windows of a cell, and check that the model can read them."""
    drawn: list[Any]
    if cell.task == "text":
        drawn = windows(tokenizer, texts, cell.length, settings.windows)
    else:
        count, contexts, seed = settings.questions, settings.contexts, settings.seed
        drawn = questions(cell, tokenizer, texts, count=count, contexts=contexts, seed=seed)
    check_items(model, "lengths", drawn)
    return drawn


def questions(
    cell: Cell,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    count: int,
    contexts: int,
    seed: int,
    wordings: Sequence[int] | None = None,
) -> list[Question]:
    """Draw questions about a number of contexts, by default in the wordings of the cell.

    Every maximum is its own context.
    """
    options: dict[str, Any] = {"questions": count, "seed": seed, "prefix": start_tokens(tokenizer)}
    if cell.task == "maximum":
        return drawing.maximum_of_length(tokenizer, cell.length, **options)
    draw = drawing.passkey if cell.task == "passkey" else drawing.key_value
    wordings = wordings or (drawing.UNSEEN if cell.wording == "unseen" else (0,))
    return draw(tokenizer, texts, cell.length, contexts=contexts, wordings=wordings, **options)


def windows(tokenizer: Tokenizer, texts: Sequence[str], length: int, count: int) -> list[Window]:
    """Cut at most `count` windows from texts, without overlap and evenly spread."""
    found: list[tuple[int, ...]] = []
    prefix = start_tokens(tokenizer)
    own = length - len(prefix)
    for text in texts:
        tokens = encode(tokenizer, text)
        found += [(*prefix, *tokens[at : at + own]) for at in range(0, len(tokens) - own + 1, own)]
    if not found:
        raise ValueError(f"texts: expected at least {length} tokens, the length of a window")
    count = min(count, len(found))
    return [Window(found[place * len(found) // count], place) for place in range(count)]


def check_texts(
    tokenizer: Tokenizer, texts: Mapping[str, str], longest: int, where: str = ""
) -> None:
    """Check that texts, or `where` in them, are as long as the longest prompt."""
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
    """Check in advance that all cells can be asked, since an evaluation may take hours."""
    longest = max(cell.length for cell in cells)
    check_positions(model, "lengths", longest)
    # Encoding a long text takes time, and a prompt needs only the start of it.
    texts = [text[: 64 * longest] for text in texts]
    # Two contexts with two questions each show all wordings of a cell.
    few = EvaluationSettings("", {}, questions=4, contexts=2, windows=1)
    for cell in cells:
        items(cell, tokenizer, texts, model, few)
