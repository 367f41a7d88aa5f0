from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import pytest

from experiments.clrs_text.task import Stream, algorithms, example, examples, score
from experiments.clrs_text.task._examples import (
    drawn_input,
    is_correct,
    split_of,
    without_trace,
)
from experiments.clrs_text.task._generator import draw
from sharpmax import MissingExtraError


def test_an_example_depends_on_its_seed_and_its_number_alone() -> None:
    names = ["minimum", "bfs", "quicksort"]
    stream = list(examples(names, [4, 9], seed=7, count=12))
    assert [one.index for one in stream] == list(range(12))
    assert stream[5:] == list(examples(names, [4, 9], seed=7, start=5, count=7))
    endless = examples(names, [4, 9], seed=7, start=3)
    assert list(itertools.islice(endless, 4)) == stream[3:7]
    for one in stream:
        assert one == example(one.algorithm, one.length, seed=7, index=one.index)
    others = examples(names, [4, 9], seed=8, count=12)
    assert {one.text for one in stream}.isdisjoint(one.text for one in others)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("use_hints", [False, True])
def test_the_package_gives_the_same_for_the_seed_of_an_example(split: str, use_hints: bool) -> None:
    for one in examples(algorithms(), 5, seed=1, use_hints=use_hints, split=split, count=30):
        drawn = draw(one.algorithm, one.length, seed=one.seed, use_hints=use_hints)
        assert (one.question, one.answer) == drawn
        assert one.text == one.question + one.answer
        assert one.answer.endswith(f"{one.target}\n\n")
        assert (one.split, one.use_hints) == (split, use_hints)


def test_hints_add_a_trace_and_change_no_input() -> None:
    both = (examples(algorithms(), 6, seed=2, use_hints=use, count=30) for use in (False, True))
    for plain, hinted in zip(*both, strict=True):
        assert drawn_input(plain.question) == drawn_input(hinted.question)
        assert plain.answer.count("|") == 0
        traced = hinted.algorithm != "segments_intersect"
        assert hinted.answer.count("|") == hinted.question.count("initial_trace: ") == traced


@pytest.mark.parametrize("algorithm", ["bfs", "naive_string_matcher", "articulation_points"])
def test_the_splits_share_nothing_even_where_inputs_are_few(algorithm: str) -> None:
    train = [e.question for e in examples(algorithm, 4, seed=0, count=400)]
    test = [e.question for e in examples(algorithm, 4, seed=0, split="test", count=40)]
    assert len(set(train)) < 400
    assert set(train).isdisjoint(test)
    # The input decides, so other algorithms, seeds and traces change nothing.
    hinted = examples(algorithm, 4, seed=9, split="test", use_hints=True, count=10)
    assert {drawn_input(e.question) for e in hinted}.isdisjoint(map(drawn_input, train))


def test_one_input_in_eight_is_for_tests() -> None:
    drawn = [split_of(draw("minimum", 8, seed=seed)[0]) for seed in range(2000)]
    assert drawn.count("test") / len(drawn) == pytest.approx(1 / 8, abs=0.02)


def test_algorithms_take_turns_at_their_lengths() -> None:
    turns = [
        (e.algorithm, e.length)
        for e in examples(["bfs", "minimum"], {"bfs": [4], "minimum": [5, 6]}, seed=0, count=4)
    ]
    assert turns == [("bfs", 4), ("minimum", 5), ("minimum", 6), ("bfs", 4)]


def test_what_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="algorithms, lengths: expected at least one of each"):
        next(examples([], [4], seed=0))
    with pytest.raises(ValueError, match=r"lengths: expected those of all.*, got none of dfs"):
        next(examples(["bfs", "dfs"], {"bfs": [4]}, seed=0))
    with pytest.raises(ValueError, match="question: expected three lines"):
        drawn_input("What is the minimum of 1 and 2?")
    with pytest.raises(ValueError, match="split: expected one of train, test, got 'dev'"):
        example("bfs", 4, seed=0, split="dev")
    module = "experiments.clrs_text.task._examples"
    monkeypatch.setattr(f"{module}.split_of", lambda _: "train")
    monkeypatch.setattr(f"{module}._ATTEMPTS", 5)
    with pytest.raises(ValueError, match="bfs has inputs for test; 4 has none in 5 draws"):
        example("bfs", 4, seed=0, split="test")


def test_a_stream_of_dicts_can_be_gone_through_again() -> None:
    stream = Stream(["minimum", "bfs"], [4, 8], seed=3, use_hints=True, count=6)
    records = list(stream)
    assert records == list(stream)
    one = next(examples("minimum", 4, seed=3, use_hints=True))
    assert records[0]["text"] == one.text
    assert records[0]["target"] == one.target
    assert {"question", "answer", "algorithm", "length"} < set(records[0])


def test_a_stream_for_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream("minimum", 4, seed=3, count=2)

    def from_generator(generator, gen_kwargs):
        return list(generator(**gen_kwargs))

    fake = SimpleNamespace(IterableDataset=SimpleNamespace(from_generator=from_generator))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert stream.to_datasets() == list(stream)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"needs datasets.*sharpmax\[harness\]"):
        stream.to_datasets()


@pytest.mark.parametrize("use_hints", [False, True])
def test_every_answer_is_correct_for_its_own_question(use_hints: bool) -> None:
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
    assert is_correct("[0 0] | [0 1]\n\n", answer)
    assert is_correct(" | [0 1]", answer)
    assert not is_correct("[0 1]", answer)
    assert not is_correct("[1 0], [1 1]", answer)
    assert not is_correct("[0 1] | [1 1]\n\n", answer)
    assert not is_correct("[0 1] | [0 1] | [1 1]", answer)


def test_without_a_trace_the_line_is_the_answer() -> None:
    assert is_correct("0, 3", "0, 3\n\n")
    assert not is_correct("1 | 0, 3", "0, 3\n\n")
    assert not is_correct("\n0, 3", "0, 3\n\n")
