from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.clrs_text.data import batches
from experiments.clrs_text.entropy import answer_entropies
from experiments.clrs_text.inference import AT_INFERENCE, Method, applied, rule_of
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import example
from sharpmax import policies
from sharpmax.models import Calibration

_RECIPE = Recipe({"quicksort": (4, 6)}, layers=2, heads=2, width=32, hidden=32)


@pytest.mark.parametrize("method", AT_INFERENCE)
def test_rules_change_the_model_within_the_block_alone(method: Method) -> None:
    model, encoder = prepared(_RECIPE, 0)
    rule = rule_of(method, model, encoder, _RECIPE.lengths, each=8, steps=2)
    if method == "calibrated":
        assert isinstance(rule, Calibration | None)
    ((_, batch),) = batches([encoder(example("quicksort", 24, seed=0))], 10_000)
    with torch.no_grad():
        plain = answer_logits(model, batch)
        with applied(model, rule):
            inside = answer_logits(model, batch)
        assert torch.equal(answer_logits(model, batch), plain)
    assert torch.equal(plain, inside) == (rule is None)


def test_references_leave_nearly_all_rows_of_training_alone() -> None:
    model, encoder = prepared(_RECIPE, 0)
    rule = rule_of("exponential", model, encoder, _RECIPE.lengths, each=32)
    assert isinstance(rule, dict)
    examples = [example("quicksort", 6, seed=9, index=index) for index in range(32)]
    entropy = answer_entropies(model, encoder, examples).entropy
    for layer in range(2):
        policy = rule[layer]
        assert isinstance(policy, policies.Exponential)
        above = entropy[layer] > np.asarray(policy.reference)[:, None]
        assert 0.0 < above.mean() < 0.12
