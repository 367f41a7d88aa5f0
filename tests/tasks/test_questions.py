from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest

from sharpmax.tasks import (
    SEEN,
    UNSEEN,
    Question,
    key_value,
    maximum,
    maximum_of_length,
    own_source,
    passkey,
    start_tokens,
)
from sharpmax.tasks import _key_value as pairs
from sharpmax.tasks import _passkey as hidden
from sharpmax.tasks._questions import take


class Syllables:
    """A tokenizer of pairs of letters; single digits and signs are tokens of their own."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        found = []
        for token in re.findall(r" ?[a-zA-Z]{1,2}|[^a-zA-Z]", text):
            if token not in self.tokens:
                self.tokens.append(token)
            found.append(self.tokens.index(token))
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.tokens[number] for number in token_ids)


TEXTS = ("It was the best of times, it was the worst of times. " * 60, "Call me Ishmael. " * 200)


def _passkeys(tokenizer: Syllables, length: int, **options: object) -> list[Question]:
    settings = {"questions": 12, "seed": 3, **options}
    return passkey(tokenizer, TEXTS, length, **settings)


def _pairs(tokenizer: Syllables, length: int, **options: object) -> list[Question]:
    settings = {"questions": 12, "seed": 3, **options}
    return key_value(tokenizer, TEXTS, length, **settings)


@pytest.mark.parametrize("length", [80, 200, 701])
def test_lengths_are_exact_and_the_answer_is_in_the_prompt(length: int) -> None:
    tokenizer = Syllables()
    drawn = _passkeys(tokenizer, length, prefix=(0,))
    # Eight pairs take about 250 tokens.
    drawn += _pairs(tokenizer, length + 250, wordings=(0, 1, 2), prefix=(0,))
    assert [len(question.ids) - length for question in drawn] == [0] * 12 + [250] * 12
    for question in drawn:
        text = tokenizer.decode(question.ids)
        assert question.answer in text
        assert tokenizer.decode(question.answer_ids).strip() == question.answer


def test_the_pass_key_is_at_its_depth_and_asked_for_last() -> None:
    tokenizer = Syllables()
    drawn = _passkeys(tokenizer, 500, wordings=(0, 1, 2), contexts=2)
    assert Counter(question.wording for question in drawn) == {0: 4, 1: 4, 2: 4}
    assert Counter(question.context for question in drawn) == {0: 6, 1: 6}
    for question in drawn:
        text = tokenizer.decode(question.ids)
        assert text.endswith(hidden.WORDINGS[question.wording][1])
        assert text.index(question.answer) / len(text) == pytest.approx(question.depth, abs=0.15)
    assert max(question.depth for question in drawn) > 0.9
    assert min(question.depth for question in drawn) < 0.1


@pytest.mark.parametrize("wording", range(len(pairs.WORDINGS)))
def test_a_value_belongs_to_its_key_and_keys_are_different(wording: int) -> None:
    tokenizer = Syllables()
    line, asked = (re.escape(part) for part in pairs.WORDINGS[wording])
    line = line.replace(r"\{key\}", "([A-Z][a-z]+)").replace(r"\{value\}", r"(\d{4})")
    asked = asked.replace(r"\{key\}", "([A-Z][a-z]+)")
    for question in _pairs(tokenizer, 900, contexts=4, wordings=(wording,)):
        text = tokenizer.decode(question.ids)
        match = re.search(asked + "$", text)
        assert match is not None
        lines = re.findall(line, text)
        assert dict(lines)[match[1]] == question.answer
        assert len(dict(lines)) == len(lines) == 8
        assert text.index(question.answer) / len(text) == pytest.approx(question.depth, abs=0.1)


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    one, again = (_passkeys(Syllables(), 300) for _ in range(2))
    assert one == again
    other = _passkeys(Syllables(), 300, seed=4)
    assert {question.answer for question in one}.isdisjoint(q.answer for q in other)
    lists = [_pairs(Syllables(), 300, seed=seed) for seed in (1, 1, 2)]
    assert lists[0] == lists[1] != lists[2]


def test_questions_of_one_context_share_all_but_the_last_line() -> None:
    drawn = _pairs(Syllables(), 400, questions=8, contexts=1)
    assert len({question.ids[:380] for question in drawn}) == 1
    assert len({question.answer for question in drawn}) == 8
    assert sorted(question.depth for question in drawn) == [(i + 0.5) / 8 for i in range(8)]
    first, second = _passkeys(Syllables(), 400, questions=2, contexts=1)
    before = int(360 * min(first.depth, second.depth))
    assert first.ids[:before] == second.ids[:before]


def test_some_wordings_are_kept_for_the_test() -> None:
    for task in (hidden, pairs):
        assert sorted([*SEEN, *UNSEEN]) == list(range(len(task.WORDINGS)))


def test_the_maximum_of_a_sequence() -> None:
    tokenizer = Syllables()
    for question in maximum(tokenizer, 40, questions=5, seed=0):
        text = tokenizer.decode(question.ids)
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        assert len(set(numbers)) == 40
        assert question.answer == str(max(numbers))
        assert numbers.index(max(numbers)) == round(39 * question.depth)
    with pytest.raises(ValueError, match="elements: expected from 1 to 10000, got 10001"):
        maximum(tokenizer, 10_001, questions=1, seed=0)


def test_what_does_not_fit_is_said() -> None:
    tokenizer = Syllables()
    with pytest.raises(ValueError, match=r"texts\[0\]: expected at least .* give a longer text"):
        _passkeys(tokenizer, 100_000)
    with pytest.raises(ValueError, match="length: expected at least"):
        _passkeys(tokenizer, 20)
    with pytest.raises(ValueError, match="length: expected at least"):
        _pairs(tokenizer, 40)
    with pytest.raises(ValueError, match="texts: expected at least one"):
        passkey(tokenizer, [], 100, questions=1, seed=0)
    with pytest.raises(ValueError, match="length"):
        take([], 1, [1, 2])


@pytest.mark.parametrize("length", [60, 333])
def test_the_maximum_by_its_length_in_tokens(length: int) -> None:
    tokenizer = Syllables()
    for question in maximum_of_length(tokenizer, length, questions=4, seed=0, prefix=(0,)):
        assert len(question.ids) == length
        text = tokenizer.decode(question.ids[1:])
        assert len(text) - len(text.lstrip("\n")) < 8, "no room is left for another number"
        assert question.answer == str(max(map(int, re.findall(r"\d+", text))))
    with pytest.raises(ValueError, match="length: expected room for a number"):
        maximum_of_length(tokenizer, 20, questions=1, seed=0)


def test_start_tokens_are_those_that_come_before_every_text() -> None:
    class Begun(Syllables):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [99] * add_special_tokens + super().encode(text, add_special_tokens=False)

    class Plain(Syllables):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return super().encode(text, add_special_tokens=False)

    assert start_tokens(Begun()) == (99,)
    assert start_tokens(Plain()) == ()


def test_the_source_of_the_package_is_whole_and_the_same_each_time() -> None:
    text = own_source()
    assert len(text) > 200_000
    assert text == own_source()
    # In the order of names.
    assert text.index("`python -m sharpmax` is the command") < text.index("Lemma 2.1 of")
