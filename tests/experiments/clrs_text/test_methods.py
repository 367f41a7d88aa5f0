from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.clrs_text.data import Batch, batches, training_examples
from experiments.clrs_text.evaluation import answer_entropies
from experiments.clrs_text.methods import TrainedAttention, applied, change_of
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.recipe import AT_INFERENCE, Attention, Method, Recipe
from experiments.clrs_text.task import example
from sharpmax import policies
from sharpmax.models import Calibration

_RECIPE = Recipe({"quicksort": (4, 6)}, layers=2, heads=2, width=32, hidden=32)


def _ready(attention: Attention) -> tuple[TrainedAttention, torch.nn.Module, Batch]:
    recipe = Recipe(
        {"quicksort": (4, 6)}, attention=attention, layers=2, heads=2, width=32, batch=3
    )
    model, encoder = prepared(recipe, 0)
    encoded = [encoder(one) for one in training_examples(recipe, 0, 0)]
    ((_, batch),) = batches(encoded, 10_000)
    return TrainedAttention(model, recipe), model, batch


@pytest.mark.parametrize("attention", ["softmax", "paper", "ssmax"])
def test_a_model_is_changed_within_the_block_alone(attention: Attention) -> None:
    attention_of, model, batch = _ready(attention)
    if attention == "ssmax":
        with torch.no_grad():
            attention_of.scales[1].fill_(2.0)
    plain = answer_logits(model, batch)
    with attention_of:
        inside = answer_logits(model, batch)
    assert torch.equal(answer_logits(model, batch), plain)
    assert torch.allclose(plain, inside, atol=1e-6) == (attention == "softmax")


def test_scales_learn_and_are_read_anew() -> None:
    attention_of, model, batch = _ready("ssmax")
    # Rows of all lengths are above 1.
    for scale in attention_of.scales:
        torch.nn.init.constant_(scale, 1.0)
    with attention_of:
        before = answer_logits(model, batch)
        before.sum().backward()
        for scale in attention_of.scales:
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


@pytest.mark.parametrize("method", AT_INFERENCE)
def test_changes_change_the_model_within_the_block_alone(method: Method) -> None:
    model, encoder = prepared(_RECIPE, 0)
    change = change_of(method, model, encoder, _RECIPE.lengths, each=8, steps=2)
    if method == "calibrated":
        assert isinstance(change, Calibration | None)
    ((_, batch),) = batches([encoder(example("quicksort", 24, seed=0))], 10_000)
    with torch.no_grad():
        plain = answer_logits(model, batch)
        with applied(model, change):
            inside = answer_logits(model, batch)
        assert torch.equal(answer_logits(model, batch), plain)
    assert torch.equal(plain, inside) == (change is None)


def test_references_leave_nearly_all_rows_of_training_alone() -> None:
    model, encoder = prepared(_RECIPE, 0)
    change = change_of("exponential", model, encoder, _RECIPE.lengths, each=32)
    assert isinstance(change, dict)
    examples = [example("quicksort", 6, seed=9, index=index) for index in range(32)]
    entropy = answer_entropies(model, encoder, examples).entropy
    for layer in range(2):
        policy = change[layer]
        assert isinstance(policy, policies.Exponential)
        above = entropy[layer] > np.asarray(policy.reference)[:, None]
        assert 0.0 < above.mean() < 0.12
