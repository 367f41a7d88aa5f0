"""What a recorder is told, against the weights that eager attention shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import sharpmax
from model_families import BY_NAME, result, shared
from sharpmax._statistics import RowStatistics
from sharpmax.models import CannotSharpenError, Recorder, record
from sharpmax.models._attachment import ATTRIBUTE
from sharpmax.policies import Exponential


class Rows:
    def __init__(self) -> None:
        self.found: dict[int, RowStatistics] = {}

    def record(self, layer: int, statistics: RowStatistics) -> None:
        self.found[layer] = statistics


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "gpt2", "bert"])
def test_rows_are_those_of_the_weights_that_eager_attention_shows(name: str) -> None:
    model, inputs, rows = shared(name), BY_NAME[name].inputs(), Rows()
    shown = copy.deepcopy(model)
    shown.set_attn_implementation("eager")
    with torch.no_grad():
        before = result(model, **inputs)
        with record(model, rows):
            torch.testing.assert_close(result(model, **inputs), before)
        assert torch.equal(result(model, **inputs), before)
        weights = shown(**inputs, output_attentions=True).attentions
    assert isinstance(rows, Recorder)
    assert list(rows.found) == list(range(len(weights)))
    for layer, statistics in rows.found.items():
        expected = torch.special.entr(weights[layer].double()).sum(-1).float()
        entropy: Any = statistics.entropy()
        torch.testing.assert_close(entropy, expected, atol=1e-4, rtol=1e-4)


def test_recording_ends_with_restore_and_gradients_pass() -> None:
    model, rows = BY_NAME["llama"].build(), Rows()
    handle = record(model, rows)
    assert repr(handle) == "Sharpened(LlamaForCausalLM: 0 of 2 attention layers)"
    result(model, **BY_NAME["llama"].inputs()).mean().backward()
    entropy: Any = rows.found[0].entropy()
    assert not entropy.requires_grad
    assert model.model.embed_tokens.weight.grad.abs().max() > 0
    handle.restore()
    rows.found.clear()
    result(model, **BY_NAME["llama"].inputs())
    assert not rows.found
    assert not any(ATTRIBUTE in module.__dict__ for module in model.modules())


def test_what_cannot_be_recorded_is_refused() -> None:
    model = shared("llama")
    wrong: Any = print
    with pytest.raises(TypeError, match=r"recorder: expected an object with a method record"):
        record(model, wrong)
    with (
        sharpmax.sharpen(model, Exponential(1.0)),
        pytest.raises(CannotSharpenError, match="is already sharpened"),
    ):
        record(model, Rows())
