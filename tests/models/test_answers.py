from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import sharpmax
from model_families import BY_NAME, VOCABULARY
from sharpmax.models import Answer, Asked, answer
from sharpmax.models._answers import common_length
from sharpmax.policies import Exponential
from sharpmax.tasks import Question

FAMILIES = ["llama", "gpt2", "mistral", "gemma2", "gemma3", "llama4", "deepseek_v3"]


def ask(ids: list[int], answer_ids: list[int], context: int = 0) -> Question:
    return Question(tuple(ids), "", tuple(answer_ids), 0, context, 0.5)


def some_questions(seed: int = 0) -> list[Question]:
    """Questions of two contexts, that branch at several places; some prompts are equal."""
    torch.manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(4, VOCABULARY, (count,)).tolist()

    found = []
    for context in range(2):
        beginning = draw(9)
        found += [ask([*beginning, *draw(3)], draw(3), context) for _ in range(3)]
        found.append(ask([*beginning[:4], *draw(6)], draw(1), context))
        found.append(ask(list(found[-2].ids), draw(2), context))
    return found


def alone(model: PreTrainedModel, question: Asked) -> Answer:
    """The same by a full forward pass of prompt and answer."""
    ids = torch.tensor([[*question.ids, *question.answer_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(question.ids) - 1 : -1]
    targets = torch.tensor(question.answer_ids)
    exact = bool((logits.argmax(-1) == targets).all())
    chosen = logits.log_softmax(-1).gather(-1, targets[:, None])
    return Answer(exact, float(chosen.sum()))


def assert_asked_as_if_alone(model: PreTrainedModel, questions: list[Question]) -> None:
    for found, question in zip(answer(model, questions), questions, strict=True):
        expected = alone(model, question)
        assert found.log_probability == pytest.approx(expected.log_probability, abs=2e-4)
        assert found.exact == expected.exact


@pytest.mark.parametrize("name", FAMILIES)
def test_each_question_is_answered_as_if_asked_alone(name: str) -> None:
    # Windows of the families are shorter than the prompts, so that they forget.
    assert_asked_as_if_alone(BY_NAME[name].build(), some_questions())


def test_the_same_while_the_window_is_not_full() -> None:
    assert_asked_as_if_alone(BY_NAME["mistral"].build(sliding_window=14), some_questions())


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_same_with_sharpened_attention(name: str) -> None:
    model = BY_NAME[name].build()
    with sharpmax.sharpen(model, Exponential(0.5)):
        assert_asked_as_if_alone(model, some_questions())


def test_exact_is_what_greedy_decoding_gives() -> None:
    model = BY_NAME["llama"].build()
    right, wrong = [], []
    for question in some_questions():
        start = torch.tensor([question.ids])
        made = model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=3, do_sample=False,
            eos_token_id=None,
        )[0, start.shape[1] :].tolist()  # fmt: skip
        right.append(ask(list(question.ids), made))
        wrong.append(ask(list(question.ids), [*made[:2], (made[2] + 1) % VOCABULARY]))
    assert all(each.exact for each in answer(model, right))
    assert not any(each.exact for each in answer(model, wrong))


def test_no_token_is_read_twice_after_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = BY_NAME["llama"].build()
    questions = some_questions()
    read: list[int] = []
    forward = model.forward

    def counting(*arguments: Any, **options: Any) -> Any:
        read.append(options["input_ids"].shape[1])
        return forward(*arguments, **options)

    monkeypatch.setattr(model, "forward", counting)
    answer(model, questions)
    # As many as there are different beginnings, and the last token of a prompt that comes again.
    rows = [(*question.ids, *question.answer_ids[:-1]) for question in questions]
    different = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    again = len(questions) - len({question.ids for question in questions})
    assert sum(read) == len(different) + again
    assert sum(read) < 0.7 * sum(map(len, rows))


def test_answers_come_in_the_order_of_the_questions_and_progress_is_told() -> None:
    model, questions = BY_NAME["llama"].build(), some_questions()
    told: list[tuple[int, int]] = []
    forward = answer(model, questions, lambda *step: told.append(step))
    assert told == [(number + 1, 10) for number in range(10)]
    backward = answer(model, questions[::-1])[::-1]
    for one, other in zip(forward, backward, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=2e-4)
    assert answer(model, []) == []


@pytest.mark.parametrize("question", [ask([], [1]), ask([1], [])])
def test_empty_questions_are_named(question: Question) -> None:
    with pytest.raises(ValueError, match=r"questions\[1\]: expected a prompt and an answer"):
        answer(BY_NAME["llama"].build(), [ask([4], [5]), question])


def test_common_length() -> None:
    assert common_length([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_length([], [1]) == 0
    assert common_length([1, 2], [1, 2, 3]) == 2
