"""Data for calibration: three splits of texts that share nothing, and questions about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from sharpmax._settings import Task
from sharpmax.models._calibration.objectives import Splits
from sharpmax.models._evaluation.cells import Cell, check_texts, questions
from sharpmax.tasks import SEEN, Question, Tokenizer
from sharpmax.tasks._key_value import PAIRS

_FIT_SHARE, _KEPT_SHARE = 0.7, 0.75
_USES = {"fit": "fitting", "select": "selecting heads", "test": "the test"}

# Contexts of a task at a length start at a multiple of this, so that no two share a number.
_APART = 1_000_000


def split_texts(texts: Sequence[str], test_texts: Sequence[str] = ()) -> Splits[str]:
    """Split texts into three lists of passages that share nothing.

    The first 70 percent of each text are for fitting and the rest for selecting. Without
    `test_texts`, the last quarter of each text is kept for the test before that.

    Example:
        >>> split_texts(["a" * 28 + "b" * 12], ["c"])
        Splits(fit=['aaaaaaaaaaaaaaaaaaaaaaaaaaaa'], select=['bbbbbbbbbbbb'], test=['c'])
        >>> [len(part[0]) for part in vars(split_texts(["a" * 40])).values()]
        [21, 9, 10]
    """
    fit, select, test = [], [], list(test_texts)
    for text in texts:
        kept = len(text) if test_texts else round(_KEPT_SHARE * len(text))
        cut = round(_FIT_SHARE * kept)
        fit.append(text[:cut])
        select.append(text[cut:kept])
        if not test_texts:
            test.append(text[kept:])
    return Splits(fit, select, test)


def check_splits(
    tokenizer: Tokenizer,
    texts: Splits[str],
    names: Splits[str],
    lengths: Sequence[int],
    test_lengths: Sequence[int],
) -> None:
    """Check in advance that every passage is as long as the longest prompt in it.

    The evaluation asks prompts of `test_lengths` in the third split. Names have the order of texts.
    """
    most = {"fit": max(lengths), "select": max(lengths), "test": max([*lengths, *test_lengths])}
    for split, longest in most.items():
        passages = dict(zip(getattr(names, split), getattr(texts, split), strict=True))
        check_texts(tokenizer, passages, longest, f" in its part for {_USES[split]}")


def question_splits(
    tokenizer: Tokenizer,
    texts: Splits[str],
    tasks: Sequence[Task],
    lengths: Sequence[int],
    *,
    contexts: tuple[int, int, int],
    seed: int,
) -> Splits[Question]:
    """Draw questions for fitting, selecting and testing a calibration, in the seen wordings.

    Every task is asked at every length, about a number of contexts per split. A context has one
    question of passkey or maximum, or eight of key-value.
    """
    splits: list[list[Question]] = []
    for number, (passages, count) in enumerate(zip(vars(texts).values(), contexts, strict=True)):
        found: list[Question] = []
        for place, (task, length) in enumerate(product(tasks, lengths)):
            drawn = _draw(Cell(task, length), tokenizer, passages, count, seed * 3 + number)
            found += [replace(each, context=place * _APART + each.context) for each in drawn]
        splits.append(found)
    return Splits(*splits)


def _draw(
    cell: Cell, tokenizer: Tokenizer, texts: Sequence[str], contexts: int, seed: int
) -> list[Question]:
    seed += 1000 * cell.length
    draw = partial(questions, cell, tokenizer, texts, contexts=contexts, seed=seed)
    if cell.task == "maximum":
        return draw(count=contexts)
    if cell.task == "key-value":
        return draw(count=contexts * PAIRS, wordings=SEEN)
    # A context has one question here, so `passkey` would use the first wording alone.
    drawn = [draw(count=contexts, wordings=(wording,)) for wording in SEEN]
    return [drawn[place % len(SEEN)][place] for place in range(contexts)]
