from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import sharpmax
from calibrated_model import opened, some_windows, tiny
from model_families import BY_NAME, VOCABULARY
from sharpmax.models import Splits, Window, answer, answer_loss, text_loss, text_splits
from sharpmax.models._calibration import objectives
from sharpmax.models._calibration.objectives import _windows, answer_wrong, drift
from sharpmax.models._handle import neutral_rules, set_rules
from sharpmax.policies import Exponential
from sharpmax.tasks import Question


def _questions(common: int = 20, contexts: int = 2) -> list[Question]:
    """Questions whose prompts share all but a few tokens, with answers of several lengths."""
    torch.manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(4, VOCABULARY, (count,)).tolist()

    found = []
    for context in range(contexts):
        beginning = draw(common)
        for count in (1, 3, 2):
            ids = (*beginning, *draw(2))
            found.append(Question(ids, "", tuple(draw(count)), 0, context, 0.5))
    return found


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "qwen3", "gemma2", "gemma3", "mistral", "llama4"]
)
def test_packed_answers_lose_as_much_as_those_asked_alone(name: str) -> None:
    model, questions = BY_NAME[name].build(), _questions()
    with torch.no_grad():
        packed = answer_loss(model, questions)
        # A context each: no two are read in one row.
        apart = [replace(question, context=n) for n, question in enumerate(questions)]
        alone = answer_loss(model, apart)
    torch.testing.assert_close(packed, alone, atol=2e-4, rtol=1e-4)
    probabilities = [each.log_probability for each in answer(model, questions)]
    torch.testing.assert_close(packed, -torch.tensor(probabilities), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_wrong_answers_are_those_that_greedy_decoding_does_not_give(name: str) -> None:
    model, questions = BY_NAME[name].build(), _questions()
    # Every other answer is the model's own.
    for number in range(0, len(questions), 2):
        question = questions[number]
        ids = torch.tensor([question.ids])
        own = model.generate(ids, max_new_tokens=len(question.answer_ids), do_sample=False)
        answer_ids = tuple(own[0, ids.shape[1] :].tolist())
        questions[number] = replace(question, answer_ids=answer_ids)
    with torch.no_grad():
        found = answer_wrong(model, questions).tolist()
    assert found == [float(not each.exact) for each in answer(model, questions)]
    assert set(found) == {0.0, 1.0}


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_the_same_with_sharpened_attention(name: str) -> None:
    model, questions = BY_NAME[name].build(), _questions()
    with sharpmax.sharpen(model, Exponential(0.5)), torch.no_grad():
        packed = answer_loss(model, questions)
        expected = [-each.log_probability for each in answer(model, questions)]
    torch.testing.assert_close(packed, torch.tensor(expected), atol=2e-4, rtol=1e-4)


def test_questions_are_packed_only_where_that_saves_and_means_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(name: str, questions: list[Question], **settings: Any) -> int:
        model: Any = BY_NAME[name].build(**settings)
        calls: list[int] = []
        forward = model.forward

        def counting(*arguments: Any, **options: Any) -> Any:
            calls.append(options["input_ids"].shape[1])
            return forward(*arguments, **options)

        # The signature is looked at, so it has to stay.
        counting.__signature__ = inspect.signature(forward)
        monkeypatch.setattr(model, "forward", counting)
        with torch.no_grad():
            answer_loss(model, questions)
        return len(calls)

    assert rows("llama", _questions()) == 2
    # Little is common: a row each.
    assert rows("llama", _questions(common=3)) == 6
    # Windows are part of the masks.
    assert rows("mistral", _questions()) == 2
    assert rows("gemma3", _questions()) == 2
    # Its chunks would have to be part of the mask.
    assert rows("llama4", _questions()) == 6
    # Additive masks would be needed.
    assert rows("llama", _questions(), attn_implementation="eager") == 6


def test_models_without_positions_or_with_alibi_are_not_packed() -> None:
    small: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "n_layer": 1, "n_head": 2}
    assert _windows(hf.BloomForCausalLM(hf.BloomConfig(**small))) is None
    falcon = {"num_hidden_layers": 1, "num_attention_heads": 2, "new_decoder_architecture": False}
    config = hf.FalconConfig(vocab_size=32, hidden_size=16, alibi=True, **falcon)
    assert _windows(hf.FalconForCausalLM(config)) is None
    assert _windows(BY_NAME["llama"].build()) == {"": None}
    assert _windows(BY_NAME["mistral"].build()) == {"": 4}
    both = {"full_attention": None, "sliding_attention": 4}
    assert _windows(BY_NAME["gemma3"].build()) == both


def test_text_loss_is_the_cross_entropy_of_what_counts() -> None:
    model = BY_NAME["llama"].build()
    ids = torch.arange(4, 20)
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0]
        every = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
        for first in (1, 7, 15):
            window = Window(tuple(ids.tolist()), first=first)
            torch.testing.assert_close(text_loss(model, [window])[0], every[first - 1 :].mean())


@pytest.mark.parametrize("first", [0, 3])
def test_a_window_has_something_that_counts(first: int) -> None:
    with pytest.raises(ValueError, match="first: expected from 1 to 2, got"):
        Window((1, 2, 3), first=first)


def test_splits_of_texts_are_disjoint() -> None:
    splits = text_splits([range(1000), range(1000, 1500)], 50, shares=(0.5, 0.3, 0.2))
    tokens = [
        {token for window in split for token in window.ids} for split in vars(splits).values()
    ]
    assert not tokens[0] & tokens[1]
    assert not (tokens[0] | tokens[1]) & tokens[2]
    assert max(tokens[0] & set(range(1000))) < min(tokens[1]) < min(tokens[2])
    windows = [window for split in vars(splits).values() for window in split]
    assert len({window.context for window in windows}) == len(windows)
    assert all(len(window.ids) == 50 for window in windows)
    with pytest.raises(ValueError, match="texts: expected at least one window of 600 tokens"):
        text_splits([range(1000)], 600)


def test_no_split_may_be_empty() -> None:
    with pytest.raises(ValueError, match="select: expected at least one item in each split"):
        Splits([1], [], [2])
    assert Splits(["a text"], ["b"], ["c", "d"]).sizes() == {"fit": 1, "select": 1, "test": 2}


def test_drift_is_the_divergence_from_the_model_as_it_is() -> None:
    windows = [replace(window, first=2) for window in some_windows(2)]
    with opened(tiny(), "constant") as (sharpened, parameters):
        model, measure = sharpened.model, drift(partial(neutral_rules, sharpened))
        assert measure(model, windows).abs().max() < 1e-6
        numbers = torch.full_like(parameters.neutral(), 0.8).requires_grad_()
        set_rules(sharpened, parameters.rules(numbers))
        found = measure(model, windows)
        ids = torch.tensor([window.ids for window in windows])
        after = model(input_ids=ids).logits.softmax(-1)
        with sharpened.disabled():
            before = model(input_ids=ids).logits.softmax(-1)
        every = (before * (before / after).log()).sum(-1)
        torch.testing.assert_close(found, every[:, 1::4].mean(-1))
        assert found.min() > 1e-4
        # What is made smaller is the change, and not the loss of these windows.
        (slope,) = torch.autograd.grad(found.sum(), numbers)
        assert slope.sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drift_is_differentiated_a_few_rows_at_a_time(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "_CACHED", 200)
    logits, original = torch.randn(2, 7, 90, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = original.clone()
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    found = objectives._divergence(leaves[0], original)
    exact = F.kl_div(
        leaves[1].float().log_softmax(-1), original.float().log_softmax(-1),
        log_target=True, reduction="sum",
    )  # fmt: skip
    torch.testing.assert_close(found, exact)
    (3 * found).backward()
    (3 * exact).backward()
    assert leaves[0].grad is not None
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
    torch.testing.assert_close(original, before, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(objectives._divergence(logits, original), found)
