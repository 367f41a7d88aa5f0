from __future__ import annotations

import pytest
import torch

from experiments.clrs_text.attention import TrainedIn
from experiments.clrs_text.data import Batch, batches, training_examples
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.recipe import Attention, Recipe


def _ready(attention: Attention) -> tuple[TrainedIn, torch.nn.Module, Batch]:
    recipe = Recipe(
        {"quicksort": (4, 6)}, attention=attention, layers=2, heads=2, width=32, batch=3
    )
    model, encoder = prepared(recipe, 0)
    encoded = [encoder(one) for one in training_examples(recipe, 0, 0)]
    ((_, batch),) = batches(encoded, 10_000)
    return TrainedIn(model, recipe), model, batch


@pytest.mark.parametrize("attention", ["softmax", "paper", "ssmax"])
def test_a_model_is_changed_within_the_block_alone(attention: Attention) -> None:
    trained_in, model, batch = _ready(attention)
    if attention == "ssmax":
        with torch.no_grad():
            trained_in.scales[1].fill_(2.0)
    plain = answer_logits(model, batch)
    with trained_in:
        inside = answer_logits(model, batch)
    assert torch.equal(answer_logits(model, batch), plain)
    assert torch.allclose(plain, inside, atol=1e-6) == (attention == "softmax")


def test_scales_learn_and_are_read_anew() -> None:
    trained_in, model, batch = _ready("ssmax")
    # Rows of all lengths are above 1.
    for scale in trained_in.scales:
        torch.nn.init.constant_(scale, 1.0)
    with trained_in:
        before = answer_logits(model, batch)
        before.sum().backward()
        for scale in trained_in.scales:
            assert scale.grad is not None
            assert scale.grad.abs().min() > 0
            scale.data += 0.5
        assert not torch.allclose(answer_logits(model, batch), before)


def test_only_ssmax_has_parameters() -> None:
    assert [len(list(_ready(name)[0].parameters())) for name in ("softmax", "paper", "ssmax")] == [
        0,
        0,
        2,
    ]
