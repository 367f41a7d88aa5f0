from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from sharpmax.lab.clrs_text.data import LONGEST, Encoder, batches, training_examples
from sharpmax.lab.clrs_text.recipe import Recipe
from sharpmax.tasks.clrs_text import Characters, Numbers, example

_RECIPE = Recipe({"minimum": (4, 8), "quicksort": (4, 6)}, steps=10, batch=24, curriculum=0.5)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    once = training_examples(_RECIPE, 3, 7)
    assert training_examples(_RECIPE, 3, 7) == once
    assert training_examples(_RECIPE, 4, 7) != once
    assert training_examples(_RECIPE, 3, 8) != once
    kinds = Counter(one.algorithm for one in once)
    assert set(kinds) == {"minimum", "quicksort"}
    assert {one.length for one in once if one.algorithm == "quicksort"} == {4, 5, 6}
    assert {one.split for one in once} == {"train"}


def test_sizes_grow_at_first() -> None:
    largest = [max(one.length for one in training_examples(_RECIPE, 0, s)) for s in (0, 4, 9)]
    assert largest == [5, 8, 8]


@pytest.mark.parametrize("tokenizer", ["numbers", "characters"])
def test_an_encoded_example_is_its_text(tokenizer: str) -> None:
    encoder = Encoder.of(Recipe({"quicksort": (4, 8)}, tokenizer))
    one = example("quicksort", 6, seed=0)
    encoded = encoder(one)
    assert encoder.tokenizer.decode(encoded.tokens[: encoded.asked]) == one.question
    assert encoder.tokenizer.decode(encoded.tokens[encoded.asked :]) == one.answer[:-1]


def test_numbers_have_one_token_each_and_only_those_that_occur() -> None:
    encoder = Encoder.of(Recipe({"quicksort": (4, 8)}))
    encoded = encoder(example("quicksort", 6, seed=0))
    # Bracket, six numbers, bracket, end of line.
    assert len(encoded.tokens) - encoded.asked == 9
    hull = Encoder.of(Recipe({"graham_scan": (4, 8)})).tokenizer
    assert len(encoder.tokenizer) < len(hull)
    hull.encode(example("graham_scan", 6, seed=0).text)


@pytest.mark.parametrize("positions", ["none", "rotary", "randomised"])
def test_positions(positions: str) -> None:
    one = example("minimum", 6, seed=0)
    encoder = Encoder(Characters(), positions)
    found = encoder(one).positions
    assert encoder(one).positions == found, "the same for the same example"
    count = len(one.text) - 1
    if positions == "none":
        assert set(found) == {0}
    elif positions == "rotary":
        assert found == tuple(range(count))
    else:
        assert list(found) == sorted(set(found))
        assert len(found) == count
        assert found[-1] < LONGEST
        assert encoder(example("minimum", 6, seed=1)).positions != found


def test_lists_share_their_places_and_answers_have_none() -> None:
    starts = set()
    for seed in range(9):
        one = example("activity_selector", 6, seed=seed)
        characters, numbers = (Encoder(kind, "coupled") for kind in (Characters(), Numbers()))
        found = characters(one)
        assert set(found.positions[found.asked :]) == {0}
        text = one.question
        # Where the numbers of the first and of the second list begin.
        lists = [
            [found.positions[place] for place in range(opened, text.index("]", opened))
             if text[place] == " "]
            for opened in (text.index("["), text.rindex("["))
        ]  # fmt: skip
        assert lists[0] == lists[1]
        assert np.diff(lists[0]).tolist() == [8] * 4
        starts.add(lists[0][0])
        by_number = [place for place in numbers(one).positions if place]
        assert by_number[: len(by_number) // 2] == by_number[len(by_number) // 2 :]
        assert len(set(by_number)) == 8, "six numbers and two brackets"
    assert len(starts) > 3, "they begin anywhere"


def test_randomised_positions_end_somewhere() -> None:
    encoder = Encoder(Characters(), "randomised")
    with pytest.raises(ValueError, match=f"positions: expected at most {LONGEST} tokens"):
        encoder(example("bfs", 32, seed=0))


def test_batches_hold_every_example_once_and_targets_are_answers() -> None:
    encoder = Encoder.of(_RECIPE)
    encoded = [encoder(one) for one in training_examples(_RECIPE, 0, 9)]
    seen: list[int] = []
    for numbers, batch in batches(encoded, 128):
        seen += numbers
        assert batch.tokens.numel() <= 128
        for row, number in enumerate(numbers):
            one = encoded[number]
            answer = batch.targets[row][batch.targets[row] >= 0]
            assert answer.tolist() == list(one.tokens[one.asked :])
            places = batch.places[batch.targets[row] >= 0]
            assert torch.equal(places, torch.arange(one.asked - 1, len(one.tokens) - 1))
    assert sorted(seen) == list(range(len(encoded)))
