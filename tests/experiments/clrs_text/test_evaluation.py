from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax
from experiments.clrs_text.data import batches
from experiments.clrs_text.evaluation import answer_entropies, shares_correct
from experiments.clrs_text.model import answer_logits, prepared
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import example, held_out, score
from experiments.clrs_text.training import Training


@pytest.mark.parametrize("sharp", [False, True])
def test_shares_are_those_of_greedy_decoding(sharp: bool) -> None:
    recipe = Recipe(
        {"minimum": (4, 4)}, positions="rotary", steps=40, batch=16, warmup=4, layers=1, heads=2,
        width=32, hidden=32, learning_rate=1e-2, fixed=False,
    )  # fmt: skip
    training = Training(recipe, 0)
    list(training.run(40))
    model, encoder = training.model.eval(), training.encoder
    examples = held_out("minimum", 4, seed=0, each=24).examples
    if sharp:
        sharpmax.sharpen(model, sharpmax.policies.Exponential(0.5))
    found = shares_correct(model, encoder, examples)
    assert len({share == 1 for share in found}) == 2, "some of each"
    for one, share in zip(examples, found, strict=True):
        tokens = torch.tensor([encoder.tokenizer.encode(one.question)])
        written = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=2, do_sample=False
        )
        text = encoder.tokenizer.decode(written[0, tokens.shape[1] :].tolist())
        assert score(text, one) == (share == 1)
        # The end of the line is the second of two.
        assert share in (0.0, 0.5, 1.0)


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
