from __future__ import annotations

import pytest

from sharpmax._settings import Task
from sharpmax.models import Splits
from sharpmax.models._evaluation.splits import check_splits, question_splits, split_texts
from sharpmax.tasks import SEEN
from tiny_models import tokenizer

TOKENS = tokenizer()
TEXT = "".join(f"It was the {place}th of times. " for place in range(120))


def test_parts_of_a_fit_have_their_own_texts_contexts_and_questions() -> None:
    texts = Splits(["a" * 2000], ["b" * 2000], ["c" * 2000])
    options = {"contexts": (5, 3, 2), "seed": 0}
    tasks: tuple[Task, ...] = ("passkey", "key-value", "maximum")
    splits = question_splits(TOKENS, texts, tasks, [400, 450], **options)
    answers = []
    for letter, part, count in zip("abc", vars(splits).values(), (5, 3, 2), strict=True):
        # A question a context, but one for each of the eight pairs of a context.
        assert len(part) == 2 * count * (1 + 8 + 1)
        assert len({question.context for question in part}) == 2 * 3 * count
        for question in part:
            text = TOKENS.decode(question.ids).replace(" ", "")
            others = {"a": "bc", "b": "ac", "c": "ab"}[letter]
            assert not any(other * 9 in text for other in others)
        answers.append([question.ids for question in part])
    assert not set(answers[0]) & set(answers[1])
    assert {len(question.ids) for question in splits.fit} == {400, 450}


def test_nothing_is_fitted_on_wordings_that_are_kept_for_the_test() -> None:
    texts = Splits(*([text] for text in ("a" * 900, "b" * 900, "c" * 900)))
    for task in ("passkey", "key-value"):
        splits = question_splits(TOKENS, texts, [task], [400], contexts=(9, 3, 3), seed=1)
        assert {question.wording for question in splits.fit} == set(SEEN)


@pytest.mark.parametrize("apart", [False, True])
def test_parts_of_texts_have_nothing_in_common_and_leave_nothing_out(apart: bool) -> None:
    texts = [TEXT, TEXT.upper()]
    parts = split_texts(texts, ["a third"] if apart else [])
    for place, text in enumerate(texts):
        whole = parts.fit[place] + parts.select[place]
        assert text.startswith(whole)
        assert len(parts.fit[place]) == pytest.approx(0.7 * len(whole), abs=1)
        assert whole == text if apart else whole + parts.test[place] == text
    assert len(parts.test) == (1 if apart else 2)


def test_short_parts_are_named() -> None:
    parts, names = split_texts([TEXT]), Splits(["book"], ["book"], ["book"])
    check_splits(TOKENS, parts, names, [120], [200])
    size = {name: len(TOKENS.encode(part[0])) for name, part in vars(parts).items()}
    for part, lengths, test_lengths in (
        ("selecting heads", [size["select"] + 1], [10]),
        ("the test", [10], [size["test"] + 1]),
    ):
        said = f"book: expected at least .* in its part for {part}, .* got"
        with pytest.raises(ValueError, match=said):
            check_splits(TOKENS, parts, names, lengths, test_lengths)
