from __future__ import annotations

import pytest

from experiments.clrs_text.task import algorithms, examples, score
from experiments.clrs_text.task._answers import is_right, without_trace


@pytest.mark.parametrize("use_hints", [False, True])
def test_every_answer_is_right_for_its_own_question(use_hints: bool) -> None:
    for one in examples(algorithms(), 5, seed=4, use_hints=use_hints, count=30):
        assert score(one.answer, one)
        # What a model writes after the answer does not count, and a missing end does not either.
        assert score(one.answer + "minimum:\nkey", one)
        assert score(one.answer.rstrip(), one)
        assert not score("", one)
        assert not score(one.answer.rstrip() + "0", one)


def test_behind_a_trace_only_the_answer_counts() -> None:
    answer = "[1 0], [1 1] | [0 1]\n\n"
    assert without_trace(answer) == "[0 1]"
    assert is_right("[0 0] | [0 1]\n\n", answer)
    assert is_right(" | [0 1]", answer)
    assert not is_right("[0 1]", answer)
    assert not is_right("[1 0], [1 1]", answer)
    assert not is_right("[0 1] | [1 1]\n\n", answer)
    assert not is_right("[0 1] | [0 1] | [1 1]", answer)


def test_without_a_trace_the_line_is_the_answer() -> None:
    assert is_right("0, 3", "0, 3\n\n")
    assert not is_right("1 | 0, 3", "0, 3\n\n")
    assert not is_right("\n0, 3", "0, 3\n\n")
