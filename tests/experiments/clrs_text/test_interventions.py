from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

import sharpmax
from experiments.clrs_text.data import batches
from experiments.clrs_text.evaluation import shares_correct
from experiments.clrs_text.interventions import Head, best_heads, measured, right_items
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Example, example
from experiments.clrs_text.training import Training
from sharpmax import policies


@pytest.fixture(scope="module")
def trained() -> Training:
    """A model with one layer, trained for seconds: it has to read the answer in one step."""
    recipe = Recipe(
        {"minimum": (4, 8)}, steps=250, batch=32, warmup=10, layers=1, heads=2, width=64,
        hidden=64, learning_rate=1e-2, positions="shifted",
    )  # fmt: skip
    training = Training(recipe, 0)
    list(training.run(recipe.steps))
    training.model.train(False)
    return training


@pytest.fixture(scope="module")
def larger() -> list[Example]:
    return [example("minimum", 64, seed=7, index=index) for index in range(64)]


def test_items_are_those_that_the_answer_names(trained: Training) -> None:
    one = example("minimum", 6, seed=3)
    texts = [trained.encoder.tokenizer.vocabulary[t] for t in trained.encoder(one).tokens]
    (item,), end = right_items(trained.encoder, one)
    numbers = one.question.partition("[")[2].partition("]")[0].split()
    assert texts[item].strip() == min(numbers, key=float)
    assert end == []


def test_equal_numbers_are_all_right_items(trained: Training) -> None:
    question, answer = "quicksort:\nkey: [0.5 0.1 0.5]\npred:\n", "[0.1 0.5 0.5]\n\n"
    one = Example(question, answer, "quicksort", 3, False, "train", 0, 0)
    texts = [trained.encoder.tokenizer.vocabulary[t] for t in trained.encoder(one).tokens]
    found = [[texts[item] for item in own] for own in right_items(trained.encoder, one)]
    assert found == [[], [" 0.1"], ["0.5", " 0.5"], ["0.5", " 0.5"], [], []]


def test_other_algorithms_are_refused(trained: Training) -> None:
    with pytest.raises(ValueError, match="algorithm: expected one of bubble_sort"):
        right_items(trained.encoder, example("bfs", 4, seed=0))


def test_without_heads_nothing_changes(trained: Training, larger: list[Example]) -> None:
    before = trained.model.config._attn_implementation
    plain = shares_correct(trained.model, trained.encoder, larger)
    found = measured(trained.model, trained.encoder, larger)
    assert found.exact == sum(share == 1 for share in plain) / len(plain)
    assert found.tokens == pytest.approx(sum(plain) / len(plain))
    assert trained.model.config._attn_implementation == before


def test_hard_attention_is_the_limit_of_low_temperature(
    trained: Training, larger: list[Example]
) -> None:
    encoder = trained.encoder

    def correct() -> torch.Tensor:
        ((_, batch),) = batches([encoder(one) for one in larger], 64 * 128)
        with torch.no_grad():
            return answer_logits(trained.model, batch).argmax(-1) == batch.targets

    plain = correct()
    with sharpmax.sharpen(trained.model, policies.Constant(1e6)):
        limit = correct()
    # In one layer, no row depends on another. The second row, which ends the line, has no item.
    expected = limit[:, 0] & plain[:, 1]
    found = measured(trained.model, encoder, larger, [(0, 0), (0, 1)], "hard")
    assert found.exact == expected.float().mean()
    assert found.exact != plain.all(1).float().mean(), "it changes something"


def test_the_oracle_brings_answers_back(trained: Training, larger: list[Example]) -> None:
    def exact(heads: Collection[Head]) -> float:
        return measured(trained.model, trained.encoder, larger, heads).exact

    heads = [(0, 0), (0, 1)]
    assert exact(heads) > exact([]) + 0.2
    chosen = best_heads(exact, heads, 2)
    assert exact(chosen) >= max(exact([head]) for head in heads) > exact([])
