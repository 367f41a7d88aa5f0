from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.clrs_text.recipe import ATTENTIONS, LENGTHS, Recipe, arms_of, small_recipe
from experiments.clrs_text.task import algorithms


def test_recipes_round_trip_through_json() -> None:
    recipe = Recipe({"minimum": (4, 8), "bfs": (4, 5)}, attention="ssmax", positions="none")
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": "words"}, "tokenizer: expected one of numbers, characters, got 'words'"),
        ({"attention": "hard"}, "attention: expected one of"),
        ({"positions": "learned"}, "positions: expected one of"),
        ({"optimiser": "sgd"}, "optimiser: expected one of muon, adamw"),
        ({"products": "int8"}, "products: expected one of float32, bfloat16, got 'int8'"),
        ({"repeats": 0}, "repeats: expected at least 1, got 0"),
        ({"apart": True, "waves": 65}, "waves: expected at most 64, half of the width"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"width": 20}, "width: expected a multiple of twice the 4 heads, got 20"),
        (
            {"lengths": {"bfs": (8, 4)}},
            "lengths: expected the smallest and the largest size of bfs",
        ),
        ({"model": "smollm2", "positions": "none"}, "positions: expected 'rotary'"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe(**changes)


def test_arms_differ_in_their_attention_alone() -> None:
    recipe = small_recipe(LENGTHS)
    arms = arms_of(recipe)
    trained, tuned = arms[:3], arms[3:]
    assert [arm.name for arm in trained] == ["numbers-softmax", "numbers-paper", "numbers-ssmax"]
    described = [{**arm.recipe.to_dict(), "attention": ""} for arm in trained]
    assert described[0] == described[1] == described[2]
    assert arms[0].methods == ("softmax", "paper", "exponential", "by-row", "calibrated")
    assert [arm.trained_with for arm in tuned] == [
        "tuned-softmax",
        "tuned-paper",
        "tuned-exponential",
    ]
    for arm in tuned:
        assert arm.start == arms[0].recipe
        assert 10 * arm.recipe.steps == arms[0].recipe.steps
    with pytest.raises(ValueError, match="expected a tuned recipe"):
        Recipe(attention="exponential")
    assert set(LENGTHS) <= set(algorithms())


def test_softmax_is_always_there() -> None:
    assert [arm.name for arm in arms_of(small_recipe(LENGTHS), ["ssmax"])] == [
        "numbers-softmax",
        "numbers-ssmax",
    ]
    (softmax,) = arms_of(small_recipe(LENGTHS), ["softmax"])
    assert softmax.methods == ("softmax", "paper", "exponential", "by-row", "calibrated")
    with pytest.raises(ValueError, match="attention: expected some of softmax, paper, ssmax"):
        arms_of(small_recipe(LENGTHS), ["hard"])
    assert ATTENTIONS == (
        "softmax",
        "paper",
        "ssmax",
        "exponential",
        "by-row",
        "calibrated",
        "tuned-softmax",
        "tuned-paper",
        "tuned-exponential",
    )


def test_a_pretrained_model_has_tokens_and_positions_of_its_own() -> None:
    recipe = small_recipe(LENGTHS, positions="none", model="smollm2", rank=0)
    assert (recipe.positions, recipe.optimiser, recipe.rank) == ("rotary", "adamw", 0)
    assert arms_of(recipe)[0].name == "own-tokens-softmax"
    with pytest.raises(ValueError, match="tokenizer: expected one of"):
        small_recipe(LENGTHS, tokenizer="words")
