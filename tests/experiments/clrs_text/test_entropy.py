from __future__ import annotations

import numpy as np
import torch

from experiments.clrs_text.data import batches
from experiments.clrs_text.entropy import answer_entropies
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import example


def test_entropies_are_those_of_the_weights() -> None:
    recipe = Recipe(
        {"quicksort": (4, 6)}, positions="rotary", layers=2, heads=2, width=32, hidden=32
    )
    model, encoder = prepared(recipe, 0)
    examples = [example("quicksort", n, seed=0) for n in (4, 6)]
    before = model.state_dict()["model.norm.weight"].clone()
    found = answer_entropies(model, encoder, examples)
    answers = [len(encoded.tokens) - encoded.asked for encoded in map(encoder, examples)]
    assert found.entropy.shape == (2, 2, sum(answers))

    encoded = encoder(examples[0])
    model.set_attn_implementation("eager")
    ((_, batch),) = batches([encoded], 512)
    with torch.no_grad():
        weights = model(
            batch.tokens, position_ids=batch.positions,
            attention_mask=torch.ones_like(batch.tokens), output_attentions=True,
        ).attentions  # fmt: skip
    for layer, of_layer in enumerate(weights):
        rows = of_layer[0][:, batch.before[0]]
        expected = -(rows * rows.clamp(min=1e-30).log()).sum(-1)
        np.testing.assert_allclose(
            found.entropy[layer, :, : answers[0]], expected.numpy(), rtol=1e-4, atol=1e-5
        )
    assert found.visible[: answers[0]].tolist() == (batch.before[0] + 1).tolist()
    model.set_attn_implementation("sdpa")
    assert torch.equal(before, model.state_dict()["model.norm.weight"])
    answer_logits(model, batch)
