from __future__ import annotations

import re

import pytest

from sharpmax._settings import TASKS, Task
from sharpmax.models._evaluation.cells import (
    Cell,
    cells_of,
    check_texts,
    default_lengths,
    questions,
    windows,
)
from sharpmax.tasks import UNSEEN
from tiny_models import tokenizer

TOKENS = tokenizer()
TEXTS = ("It was the best of times. " * 60, "Call me Ishmael! " * 90)


def _begun(text: str, *, add_special_tokens: bool = True) -> list[int]:
    return [1] * add_special_tokens + TOKENS.encode(text, add_special_tokens=False)


class Begun:
    """A tokenizer that puts a token before every text."""

    encode = staticmethod(_begun)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "text"])
@pytest.mark.parametrize("wording", ["usual", "unseen"])
def test_questions_are_those_of_the_cell(task: Task, wording: str) -> None:
    cell = Cell(task, 420, wording)
    drawn = questions(cell, TOKENS, TEXTS, count=8, contexts=4, seed=3)
    assert {len(question.ids) for question in drawn} == {420}
    assert len({question.context for question in drawn}) == (8 if task == "maximum" else 4)
    if task != "maximum":
        expected = set(UNSEEN) if wording == "unseen" else {0}
        assert {question.wording for question in drawn} == expected
    assert drawn == questions(cell, TOKENS, TEXTS, count=8, contexts=4, seed=3)
    assert drawn != questions(cell, TOKENS, TEXTS, count=8, contexts=4, seed=4)


def test_what_a_tokenizer_puts_first_is_there_and_counts() -> None:
    for task in ("passkey", "key-value", "maximum"):
        cell = Cell(task, 420)
        for question in questions(cell, Begun(), TEXTS, count=2, contexts=2, seed=0):
            assert question.ids[0] == 1
            assert len(question.ids) == 420
    assert [window.ids[0] for window in windows(Begun(), TEXTS, 100, 5)] == [1] * 5
    assert {len(window.ids) for window in windows(Begun(), TEXTS, 100, 5)} == {100}


@pytest.mark.parametrize("count", [1, 3, 30, 300])
def test_windows_do_not_overlap_and_are_spread_over_the_texts(count: int) -> None:
    text = "".join(chr(33 + place % 90) + f"{place:06}" for place in range(500))
    drawn = windows(TOKENS, [text, text[::-1]], 100, count)
    assert len(drawn) == min(count, 70)
    assert len({window.ids for window in drawn}) == len(drawn), "each once"
    assert [window.context for window in drawn] == list(range(len(drawn)))
    with pytest.raises(ValueError, match="texts: expected at least 4000 tokens"):
        windows(TOKENS, [text], 4000, 1)


def test_cells_of_tasks_and_lengths() -> None:
    cells = cells_of(TASKS, [64, 128])
    assert len(cells) == 2 * 6
    assert {cell.task for cell in cells if cell.wording == "unseen"} == {"passkey", "key-value"}
    assert cells_of(["passkey", "text"], [64], ["unseen"]) == [
        Cell("passkey", 64, "unseen"),
        Cell("text", 64),
    ]
    with pytest.raises(ValueError, match="tasks: expected some of passkey, key-value, maximum"):
        Cell("minimum", 64)


def test_short_texts_are_named() -> None:
    check_texts(TOKENS, {"book": "a" * 100}, 100)
    expected = (
        "diary: expected at least 1,000 tokens in its end, the longest of the lengths, got 5; "
        "give a longer text or shorter lengths"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        check_texts(TOKENS, {"book": "a" * 1000, "diary": "short"}, 1000, " in its end")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, (1024, 2048, 4096)),
        (8192, (1024, 2048, 4096)),
        (4096, (1024, 2048)),
        (512, (480,)),
    ],
)
def test_default_lengths_are_those_that_the_model_allows(
    limit: int | None, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharpmax.models._evaluation.cells.positions", lambda _: limit)
    assert default_lengths(None) == expected
