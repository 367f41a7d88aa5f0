from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.recipe import Recipe, normaliser, normaliser_names
from experiments.max_retrieval.task import sample


def _data(seed: int = 0, sets: int = 6, size: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    drawn = sample(np.random.default_rng(seed), (1, sets), size)
    return (
        torch.from_numpy(drawn.priorities),
        torch.from_numpy(drawn.classes),
        torch.from_numpy(drawn.queries),
    )


def test_the_stack_is_the_papers_model_written_plainly() -> None:
    heads = Heads([5], width=32).double()
    # Biases begin at zero, where a mistake in one would not show.
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            if "bias" in name:
                parameter.normal_()
    priorities, classes, queries = _data()
    weights = {name: parameter[0] for name, parameter in heads.named_parameters()}

    one_hot = F.one_hot(classes[0].long(), 10).double()
    items = torch.cat((priorities[0].unsqueeze(-1), one_hot), -1)
    first = torch.cat((weights["priority_weight"], weights["class_weight"]))
    items = F.gelu(items @ first + weights["items_bias"]) @ weights["items_out"]
    query = F.gelu(queries[0].unsqueeze(-1) @ weights["query_in"] + weights["query_bias"])
    query = query @ weights["query_out"] + weights["query_out_bias"]
    q, k, v = query @ weights["q"], items @ weights["k"], items @ weights["v"]
    attention = torch.softmax((k @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(32), -1)
    mixture = (attention.unsqueeze(-1) * v).sum(1)
    hidden = F.gelu(mixture @ weights["output_in"] + weights["output_bias"])
    expected = hidden @ weights["output_out"] + weights["output_out_bias"]

    torch.testing.assert_close(heads(priorities, classes, queries)[0], expected)


@pytest.mark.parametrize("name", normaliser_names())
def test_a_seed_does_not_depend_on_its_company(name: str) -> None:
    recipe = Recipe(name, width=16)
    together = Heads([1, 7, 3], normaliser(recipe, [1, 7, 3]), 16).double()
    alone = Heads([7], normaliser(recipe, [7]), 16).double()
    for mine, (key, other) in zip(
        together.alone(1).parameters(), alone.named_parameters(), strict=True
    ):
        assert torch.equal(mine, other), key
    data = _data()
    scores = together(*data)
    torch.testing.assert_close(scores[1:2], alone(*data))
    torch.testing.assert_close(scores[2:3], together.alone(2)(*data))
    scores[1].sum().backward()
    for key, parameter in together.named_parameters():
        if parameter.grad is not None:
            assert not parameter.grad[[0, 2]].any(), key
            assert parameter.grad[1].isfinite().all(), key


def test_an_unknown_normaliser_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"normaliser: expected one of softmax, .*got 'hardmax'"):
        normaliser(Recipe("hardmax"), [0])
