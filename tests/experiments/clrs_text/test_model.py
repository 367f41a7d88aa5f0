from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import sharpmax
from experiments.clrs_text.data import batches, training_examples
from experiments.clrs_text.model import answer_logits, build_model, number_features, prepared
from experiments.clrs_text.recipe import Positions, Recipe, learnt_recipe
from experiments.clrs_text.task import Numbers
from tiny_models import SETTINGS, save

_SMALL = Recipe({"quicksort": (4, 6)}, layers=2, heads=2, width=32, hidden=32, batch=4, steps=1)


def test_near_numbers_begin_alike_with_a_space_or_without() -> None:
    tokenizer = Numbers(decimals=(0, 1), integers=(-1, 200), words=True)
    model = build_model(Recipe(), tokenizer, 0)
    weight = model.get_input_embeddings().weight.detach()

    def likeness(one: str, other: str) -> float:
        rows = [weight[tokenizer.vocabulary.index(text)] for text in (one, other)]
        return float(torch.cosine_similarity(*rows, dim=0))

    assert likeness("0.5", "0.51") > likeness("0.5", "0.9") + 0.2
    assert likeness("0.5", "0.501") < 0.9, "but can be told apart"
    assert likeness("0.5", " 0.5") > 0.8
    assert likeness("5", "6") > likeness("0.5", "6") + 0.2, "integers are of another kind"
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_features_are_of_unit_variance() -> None:
    features = number_features([step / 1000 for step in range(-4000, 4000)], np.array([4.0, 0.5]))
    assert features.pow(2).mean() == pytest.approx(1.0, abs=0.01)


def test_waves_have_directions_of_their_own() -> None:
    learnt = learnt_recipe({"minimum": (4, 16), "quicksort": (4, 16)})
    recipe = replace(learnt, apart=True, noise=1.0)
    model, encoder = prepared(recipe, 0)
    vocabulary = encoder.tokenizer.vocabulary
    weight = model.get_input_embeddings().weight.detach()
    rows = {text: weight[token] for token, text in enumerate(vocabulary)}
    decimals = torch.stack([rows[f"{step / 1000}"] for step in range(1000)])
    assert torch.cosine_similarity(decimals[:-1], decimals[1:]).mean() < 0.6
    others = torch.stack([row for text, row in rows.items() if "." not in text])
    fixed = [others, *(table for table in model.places.buffers())]
    directions = torch.linalg.svd(torch.cat(fixed))[2]
    rank = torch.linalg.matrix_rank(torch.cat(fixed), rtol=1e-4)
    assert rank == recipe.width - 2 * recipe.waves
    # What no other embedding has: a smooth curve of numbers.
    waves = decimals @ directions[rank:].T
    assert torch.cosine_similarity(waves[:-1], waves[1:]).min() > 0.85


def test_heads_hand_on_what_they_see() -> None:
    model = build_model(Recipe(), Numbers(), 0)
    attention = model.model.layers[0].self_attn
    product = attention.o_proj.weight @ attention.v_proj.weight
    assert torch.allclose(product, torch.eye(128), atol=1e-5)


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one, other, third = (prepared(_SMALL, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert not torch.equal(*(m.get_input_embeddings().weight for m in (one, third)))


@pytest.mark.parametrize("positions", ["none", "places", "rotary", "randomised"])
@pytest.mark.parametrize("sharp", [False, True])
def test_what_fills_up_a_batch_changes_nothing(positions: Positions, sharp: bool) -> None:
    recipe = Recipe(**{**_SMALL.to_dict(), "positions": positions})
    model, encoder = prepared(recipe, 0)
    encoded = [encoder(one) for one in training_examples(recipe, 0, 0)]
    if sharp:
        sharpmax.sharpen(model, sharpmax.policies.Paper())
    ((numbers, batch),) = batches(encoded, 10_000)
    together = answer_logits(model, batch)
    for row, number in enumerate(numbers):
        ((_, alone),) = batches([encoded[number]], 10_000)
        logits = together[row][batch.targets[row] >= 0]
        assert torch.allclose(logits, answer_logits(model, alone)[0], atol=1e-5)


def test_order_is_seen_without_positions() -> None:
    recipe = Recipe(**{**_SMALL.to_dict(), "positions": "none"})
    model, encoder = prepared(recipe, 0)
    encoded = encoder(training_examples(recipe, 0, 0)[0])
    turned = encoded._replace(tokens=(*encoded.tokens[1::-1], *encoded.tokens[2:]))
    ((_, one),), ((_, other),) = (list(batches([each], 512)) for each in (encoded, turned))
    assert not torch.allclose(answer_logits(model, one), answer_logits(model, other), atol=1e-4)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_pretrained_model_is_trained_whole_or_by_adapters(rank: int, tmp_path: Path) -> None:
    if rank:
        pytest.importorskip("peft")
    config = hf.GemmaConfig(**SETTINGS, head_dim=8)
    folder = str(save(hf.GemmaForCausalLM(config), tmp_path))
    recipe = Recipe(**{**_SMALL.to_dict(), "model": folder, "rank": rank, "positions": "rotary"})
    model, encoder = prepared(recipe, 0)
    assert isinstance(model, hf.GemmaForCausalLM)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert bool(rank) == all("lora" in name for name in trained)
    encoded = [encoder(one) for one in training_examples(recipe, 0, 0)]
    ((_, batch),) = batches(encoded, 10_000)
    with sharpmax.sharpen(model, sharpmax.policies.Paper(warn=False)):
        answer_logits(model, batch).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
