from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.clrs_text import drawn
from experiments.clrs_text.data import training_examples
from experiments.clrs_text.drawn import Drawn
from experiments.clrs_text.recipe import Recipe

_RECIPE = Recipe({"minimum": (4, 6)}, steps=70, batch=2)


@pytest.mark.parametrize("kept", [False, True])
def test_the_batches_are_those_of_the_training(kept: bool, tmp_path: Path) -> None:
    batches = Drawn(_RECIPE, 3, tmp_path if kept else None)
    for step in (0, 63, 64, 69, 1):
        assert batches(step) == training_examples(_RECIPE, 3, step)
    assert any(tmp_path.iterdir()) == kept


def test_what_is_kept_serves_all_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Drawn(_RECIPE, 3, tmp_path)(5)
    monkeypatch.setattr(drawn, "training_examples", lambda *_: pytest.fail("drawn again"))
    for other in (replace(_RECIPE, attention="paper"), replace(_RECIPE, tokenizer="characters")):
        assert Drawn(other, 3, tmp_path)(5) == first
    for change in ({"batch": 3}, {"lengths": {"minimum": (4, 5)}}, {"steps": 71}):
        with pytest.raises(pytest.fail.Exception, match="drawn again"):
            Drawn(replace(_RECIPE, **change), 3, tmp_path)(5)
