from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrated_model import opened, some_windows, tiny
from model_families import BY_NAME
from sharpmax.models import Shared, Splits, Stage, Window, calibrate
from sharpmax.models._calibration.objectives import drift, text_loss
from sharpmax.models._handle import Sharpened, neutral_rules, set_rules
from sharpmax.models._hugging_face import HuggingFace
from sharpmax.models._rule import Rule
from sharpmax.policies import Constant

TEXT = Splits(some_windows(3), some_windows(3, seed=2), some_windows(3, seed=3))
DATA = Splits(some_windows(2, seed=4), some_windows(2, seed=5), some_windows(2, seed=6))
OPTIONS: dict[str, Any] = {"text": TEXT, "steps": 2, "tolerance": 9.0, "learning_rate": 0.1}


def _loss(model: Any, windows: Sequence[Window]) -> Tensor:
    return text_loss(model, windows)


def test_families_that_share_are_the_same_with_fewer_passes() -> None:
    model, passes = tiny(1, 0, 3.0), [0]
    model.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))

    def families(shared: Shared | None) -> tuple[list[Any], int]:
        passes[0] = 0
        found = [
            calibrate(model, DATA, _loss, family=family, flatten=True, shared=shared, **OPTIONS)
            for family in ("constant", "gain")
        ]
        return [each.to_dict() for each in found], passes[0]

    alone, all_passes = families(None)
    together, fewer = families(Shared())
    assert together == alone
    # The second family saves the original losses of two splits, and predictions that are known.
    assert all_passes - fewer >= 2 * (2 + 3)


def test_other_data_are_refused() -> None:
    model, shared = tiny(), Shared()
    calibrate(model, DATA, _loss, shared=shared, **OPTIONS)
    for other in ({"data": TEXT}, {"model": tiny()}, {"objective": text_loss}):
        given = {"model": model, "data": DATA, "objective": _loss} | other
        with pytest.raises(ValueError, match="pass a new Shared"):
            calibrate(**given, shared=shared, **OPTIONS)


def test_the_fit_has_another_precision_and_the_test_that_of_the_model() -> None:
    model, seen = tiny(1, 0, 3.0), dict[str, torch.dtype]()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def on_progress(stage: Stage) -> None:
        seen[stage.name] = model.dtype

    halved, own = (
        calibrate(model, DATA, _loss, fit_dtype=each, on_progress=on_progress, **OPTIONS)
        for each in (torch.bfloat16, None)
    )
    assert halved.notes["fit_dtype"] == "bfloat16"
    assert own.notes["fit_dtype"] == "float32"
    assert halved.before == own.before
    calibrate(model, DATA, _loss, fit_dtype=torch.bfloat16, on_progress=on_progress, **OPTIONS)
    assert seen == {"fit": torch.bfloat16, "select": torch.bfloat16, "test": torch.float32}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with pytest.raises(ValueError, match="fit_dtype: expected None for a model"):
        calibrate(other, DATA, _loss, fit_dtype=torch.bfloat16, tolerance=float("inf"))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_kept_predictions_are_those_of_the_model(name: str) -> None:
    """Gemma 2 caps the outputs of its embeddings, which are therefore not enough."""
    model, shared = BY_NAME[name].build(), Shared()
    windows = some_windows(2, length=24)
    way = HuggingFace(model)
    with Sharpened(way, stock=False) as sharpened:
        measure = drift(partial(neutral_rules, sharpened), shared)
        rules = {layer.index: Rule(Constant(1.7)) for layer in way.layers}
        found = []
        for _ in range(2):
            set_rules(sharpened, rules)
            found.append(measure(model, windows))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert found[0].min() > 0
    assert len(shared._inputs) == (2 if name == "llama" else 0)


def test_unchanged_layers_agree_with_the_model_itself() -> None:
    model, windows = tiny(), some_windows(3)
    plain = text_loss(model, windows)
    with opened(model, "gain"):
        torch.testing.assert_close(text_loss(model, windows), plain, rtol=0, atol=0)
    with Sharpened(HuggingFace(model), stock=False):
        torch.testing.assert_close(text_loss(model, windows), plain)
