from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.clrs_text.recipe import Recipe


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
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"width": 20}, "width: expected a multiple of twice the 4 heads, got 20"),
        ({"lengths": {"bfs": (8, 4)}}, "lengths: expected the smallest and the largest of bfs"),
        ({"model": "smollm2", "positions": "none"}, "positions: expected 'rotary'"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe(**changes)
