from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_models
from experiments.clrs_text import data
from experiments.clrs_text.data import (
    LONGEST,
    Encoder,
    TrainingData,
    batches,
    training_examples,
)
from experiments.clrs_text.places import CHARACTERS, PLACES
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import Characters, Numbers, example

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


def test_a_model_that_starts_texts_with_a_token_gets_it() -> None:
    one = example("minimum", 4, seed=0)
    plain = tiny_models.tokenizer()
    starting = tiny_models.tokenizer()
    starting.bos_token = "~"
    starting.add_bos_token = True
    first, *rest = Encoder(starting, "rotary")(one).tokens
    assert first == starting.bos_token_id
    assert tuple(rest) == Encoder(plain, "rotary")(one).tokens


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


@pytest.mark.parametrize("kind", [Characters, Numbers])
def test_lists_share_their_places(kind: type[Characters]) -> None:
    found = Encoder(kind(), "places")(example("activity_selector", 6, seed=0))
    places = [number // CHARACTERS for number in found.positions if number >= CHARACTERS]
    # Six numbers and two brackets: two lists of the question, and that of the answer.
    assert list(dict.fromkeys(places)) == list(range(1, 9))
    assert places.count(1) == places.count(8) == 3


def test_characters_of_a_number_that_is_in_no_list_are_told_apart() -> None:
    one = example("binary_search", 6, seed=0)
    found = Encoder(Characters(), "places")(one).positions
    start = one.question.index("target: ") + len("target: ")
    assert found[start : start + 3] == (1, 2, 3)


def test_numbers_to_sort_are_told_no_index() -> None:
    numbers = Encoder(Numbers(words=True), "places")
    characters = Encoder(Characters(), "places")
    starts, rows = set(), set()
    for seed in range(9):
        one = example("quicksort", 6, seed=seed)
        assert not any(numbers(one).positions)
        found = characters(one)
        for part in (found.positions[: found.asked], found.positions[found.asked :]):
            told = [number // CHARACTERS % PLACES for number in part]
            places = list(dict.fromkeys(filter(None, told)))
            assert places == list(range(places[0], places[0] + 8))
            starts.add(places[0])
            rows.add(max(part) // CHARACTERS // PLACES)
        searched = numbers(example("binary_search", 6, seed=seed)).positions
        assert min(filter(None, searched)) == CHARACTERS
    assert len(starts) > 8
    assert rows == {0, Recipe.places - 1}, "those of answers are marked"


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
            before = batch.before[row][batch.targets[row] >= 0]
            assert torch.equal(before, torch.arange(one.asked - 1, len(one.tokens) - 1))
    assert sorted(seen) == list(range(len(encoded)))


_KEPT = Recipe({"minimum": (4, 6)}, steps=70, batch=2)


@pytest.mark.parametrize("kept", [False, True])
def test_training_data_are_the_batches_of_the_training(kept: bool, tmp_path: Path) -> None:
    found = TrainingData(_KEPT, 3, tmp_path if kept else None)
    for step in (0, 63, 64, 69, 1):
        assert found(step) == training_examples(_KEPT, 3, step)
    assert any(tmp_path.iterdir()) == kept


def test_kept_batches_serve_all_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TrainingData(_KEPT, 3, tmp_path)(5)
    monkeypatch.setattr(data, "training_examples", lambda *_: pytest.fail("drawn again"))
    for other in (replace(_KEPT, attention="paper"), replace(_KEPT, tokenizer="characters")):
        assert TrainingData(other, 3, tmp_path)(5) == first
    for change in ({"batch": 3}, {"lengths": {"minimum": (4, 5)}}, {"steps": 71}):
        with pytest.raises(pytest.fail.Exception, match="drawn again"):
            TrainingData(replace(_KEPT, **change), 3, tmp_path)(5)


def test_shifted_lists_move_the_index_in_the_answer() -> None:
    recipe = Recipe({"minimum": (4, 8), "quicksort": (4, 8)}, positions="shifted", places=40)
    encoder = Encoder.of(recipe)
    starts = set()
    for index in range(40):
        one = example("minimum", 6, seed=0, index=index)
        plain, moved = encoder(one), encoder(one, training=True)
        answer = int(encoder.tokenizer.vocabulary[moved.tokens[moved.asked]])
        start = answer - int(one.target)
        starts.add(start)
        assert plain.tokens[: plain.asked] == moved.tokens[: moved.asked]
        for before, after in zip(plain.positions, moved.positions, strict=True):
            assert after == (before + start * CHARACTERS if before else 0)
    assert 0 <= min(starts) < max(starts) <= 40 - 3 - 6 + 1
    one = example("quicksort", 6, seed=0)
    assert encoder(one) == encoder(one, training=True)
    encoded = encoder(one)
    assert set(encoded.positions[: encoded.asked]) == {0}
    assert set(encoded.positions[encoded.asked :]) == {39 * PLACES * CHARACTERS}


def test_near_ties_have_close_numbers_and_right_answers() -> None:
    examples = [example("quicksort", 16, seed=0, index=index, ties=True) for index in range(30)]
    spreads = []
    for one in examples:
        numbers = [float(x) for x in one.question.partition("[")[2].partition("]")[0].split()]
        assert one.target == "[" + " ".join(str(x) for x in sorted(numbers)) + "]"
        spreads.append(max(numbers) - min(numbers))
    assert min(spreads) < 0.05 < 0.4 < max(spreads)
    drawn = training_examples(Recipe({"minimum": (8, 8)}, ties=1.0), 0, 0)
    assert drawn[0] == example("minimum", 8, seed=0, index=0, ties=True)


def test_what_does_not_sort_is_drawn_more_often() -> None:
    recipe = Recipe({"minimum": (4, 4), "quicksort": (4, 4)}, repeats=9, batch=400)
    names = [one.algorithm for one in training_examples(recipe, 0, 0)]
    assert 320 < names.count("minimum") < 395
