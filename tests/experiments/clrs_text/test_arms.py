from __future__ import annotations

import pytest

from experiments.clrs_text.arms import ATTENTIONS, LENGTHS, arms_of, small_recipe
from experiments.clrs_text.task import algorithms


def test_arms_differ_in_their_attention_alone() -> None:
    recipe = small_recipe(LENGTHS)
    arms = arms_of(recipe)
    assert [arm.name for arm in arms] == ["numbers-softmax", "numbers-paper", "numbers-ssmax"]
    described = [{**arm.recipe.to_dict(), "attention": ""} for arm in arms]
    assert described[0] == described[1] == described[2]
    assert arms[0].methods == ("softmax", "paper", "exponential", "calibrated")
    assert set(LENGTHS) <= set(algorithms())


def test_softmax_is_always_there() -> None:
    assert [arm.name for arm in arms_of(small_recipe(LENGTHS), ["ssmax"])] == [
        "numbers-softmax",
        "numbers-ssmax",
    ]
    (softmax,) = arms_of(small_recipe(LENGTHS), ["softmax"])
    assert softmax.methods == ("softmax", "paper", "exponential", "calibrated")
    with pytest.raises(ValueError, match="attention: expected some of softmax, paper, ssmax"):
        arms_of(small_recipe(LENGTHS), ["hard"])
    assert ATTENTIONS == ("softmax", "paper", "ssmax", "exponential", "calibrated")


def test_a_pretrained_model_has_tokens_and_positions_of_its_own() -> None:
    recipe = small_recipe(LENGTHS, positions="none", model="smollm2", rank=0)
    assert (recipe.positions, recipe.optimiser, recipe.rank) == ("rotary", "adamw", 0)
    assert arms_of(recipe)[0].name == "own-tokens-softmax"
    with pytest.raises(ValueError, match="tokenizer: expected one of"):
        small_recipe(LENGTHS, tokenizer="words")
