from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.clrs_text.data import batches
from experiments.clrs_text.forward import _tree, training_logits
from experiments.clrs_text.model import answer_logits
from experiments.clrs_text.recipe import Attention, Recipe
from experiments.clrs_text.training import Training, weighted_loss

_RECIPE = Recipe(
    {"minimum": (4, 9), "quicksort": (4, 9)},
    positions="shifted", batch=9, layers=3, heads=2, width=32, hidden=48,
)  # fmt: skip


@pytest.mark.parametrize("attention", ["softmax", "paper", "ssmax", "exponential"])
def test_losses_and_gradients_are_those_of_the_whole_model(attention: Attention) -> None:
    recipe = replace(_RECIPE, attention=attention, tuned=attention == "exponential")
    training = Training(recipe, 0)
    if attention == "exponential":
        # Near the entropies of these rows: the law enlarges rounding errors of wider ones.
        for scale in training.attention.scales:
            scale.data.fill_(2.0)
    examples = [training.encoder(one, training=True) for one in training._data(0)]
    ((_, batch),) = batches(examples, 9999)
    assert len(set((batch.targets >= 0).sum(-1).tolist())) > 1
    gradients = []
    for fast in (True, False):
        training.model.zero_grad()
        training.attention.zero_grad()
        if fast:
            logits = training.logits(batch)
        else:
            with training.attention:
                logits = answer_logits(training.model, batch)[batch.targets >= 0]
        weighted_loss(logits, batch.targets).backward()
        found = {name: p.grad for name, p in training._parameters().items()}
        gradients.append({"logits": logits.detach(), **found})
    for name, one in gradients[0].items():
        torch.testing.assert_close(one, gradients[1][name], rtol=1e-4, atol=1e-5, msg=name)
    if attention == "softmax":
        # Rounded factors change little.
        rounded = training_logits(training.model, batch, training.attention.attend, torch.bfloat16)
        torch.testing.assert_close(rounded, gradients[0]["logits"], rtol=0.0, atol=0.1)
        assert not torch.equal(rounded, gradients[0]["logits"])
    assert any("scales" in name for name in found) == (attention in ("ssmax", "exponential"))


def test_shared_beginnings_are_computed_once() -> None:
    training = Training(_RECIPE, 0)
    one = training.encoder(training._data(0)[0], training=True)
    other = one._replace(tokens=(*one.tokens[:-2], one.tokens[0], one.tokens[-1]))
    ((_, batch),) = batches([one, other, one], 9999)
    tree = _tree(batch)
    count = len(one.tokens)
    # All but the last token, and the one before it twice.
    assert len(tree.tokens) == len(tree.places) == count
    assert [part.shape for part in tree.parts] == [(1, count - 1)] * 3
    assert torch.equal(tree.tokens[tree.parts[1][0]], batch.tokens[1, :-1])
    flat = torch.cat([part.flatten() for part in tree.parts])
    assert torch.equal(flat[tree.places], torch.arange(count))
