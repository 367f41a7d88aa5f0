from __future__ import annotations

import pytest
import torch

import sharpmax
from experiments.clrs_text.evaluation import shares_right
from experiments.clrs_text.recipe import Recipe
from experiments.clrs_text.task import held_out, score
from experiments.clrs_text.training import Training


@pytest.mark.parametrize("sharp", [False, True])
def test_it_says_what_greedy_decoding_gives(sharp: bool) -> None:
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
    found = shares_right(model, encoder, examples)
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
