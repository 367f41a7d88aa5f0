from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sharpmax
from experiments.attention_speed.inputs import Inputs, Shape, make_inputs, sample_rows
from experiments.attention_speed.peers import entmax_attention, textbook_attention
from experiments.attention_speed.workloads import POLICIES
from sharpmax.policies import Identity, Paper


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("length", [512, 4096])
def test_sharp_rows_are_sharp_after_sharpening_and_not_before(
    length: int, width: int, is_causal: bool
) -> None:
    shape = Shape(queries=length, keys=length, width=width, is_causal=is_causal, character="sharp")
    inputs = make_inputs(shape)
    for policy in POLICIES["sharp"].values():
        assert sample_rows(inputs, policy, count=64).largest_weight >= 0.99
    last = Inputs(
        replace(shape, queries=1, is_causal=False),
        inputs.query[:, :, -1:],
        inputs.key,
        inputs.value,
    )
    assert sample_rows(last, Identity()).largest_weight < 0.9


def test_sharp_keys_are_spread_over_the_row() -> None:
    shape = Shape(queries=64, keys=512, heads=2, key_heads=2, character="sharp")
    inputs = make_inputs(shape)
    targets = (inputs.query @ inputs.key.transpose(-2, -1)).argmax(dim=-1)
    assert targets.unique().numel() > 100
    assert targets.float().mean().item() == pytest.approx(256, abs=50)


@pytest.mark.parametrize("keys", [1024, 16384])
def test_policies_act_on_dispersed_rows(keys: int) -> None:
    inputs = make_inputs(Shape(queries=64, keys=keys))
    for policy in POLICIES["dispersed"].values():
        sample = sample_rows(inputs, policy, count=16)
        assert 4.5 < sample.entropy < 5.7
        assert sample.inverse_temperature > 1.2
        assert sample.largest_weight < 0.5


def test_sampled_rows_are_those_of_the_reference() -> None:
    shape = Shape(queries=16, keys=300, width=16, heads=4, key_heads=2, is_causal=True)
    inputs = make_inputs(shape)
    policy = POLICIES["dispersed"]["Exponential"]
    sample = sample_rows(inputs, policy, count=4)
    reference = sharpmax.attention(
        inputs.query,
        inputs.key,
        inputs.value,
        policy=policy,
        is_causal=True,
        enable_gqa=True,
        impl="reference",
    )
    torch.testing.assert_close(reference[:, :, list(sample.rows)], sample.output)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_textbook_version_agrees_with_the_reference(is_causal: bool) -> None:
    inputs = make_inputs(Shape(queries=300, keys=300, width=16, heads=2, key_heads=2))
    tensors = (inputs.query, inputs.key, inputs.value)
    torch.testing.assert_close(
        textbook_attention(*tensors, is_causal=is_causal),
        sharpmax.attention(
            *tensors, policy=Paper(warn=False), is_causal=is_causal, impl="reference"
        ),
        atol=1e-4,
        rtol=1e-3,
    )


def test_weights_of_entmax_attention_sum_to_one() -> None:
    query, key = torch.randn(2, 1, 2, 20, 8).unbind()
    ones = torch.ones(1, 2, 20, 3)
    torch.testing.assert_close(entmax_attention(query, key, ones), ones)
