"""A policy that is defined here, and nowhere else, works everywhere that a policy does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import sharpmax
from attention_cases import of_tensors, precise
from sharpmax.models import Calibration
from sharpmax.policies import EntropyTarget, Exponential, Neutral, Policy, parameter


@dataclass(frozen=True, eq=False)
class LargestWeight(Policy):
    """Sharpen a row by what its largest weight lacks to 1: beta = 1 + slope (1 - 1/mass)."""

    neutral = Neutral("slope", 0.0)

    slope: Any = parameter(at_least=0.0)

    def inverse_temperature(self, statistics, tempered=None):
        return 1.0 + self.slope * (1.0 - 1.0 / statistics.mass)


@dataclass(frozen=True, eq=False)
class HalfEntropy(Policy):
    """One step of Newton's method to half of the entropy, at most: it needs the logits."""

    needs_logits = True

    def inverse_temperature(self, statistics, tempered=None):
        assert tempered is not None
        entropy, variance = tempered(0.0 * statistics.mass + 1.0)
        return 1.0 + 0.5 * entropy / (1.0 + variance.detach())


POLICIES = [LargestWeight(2.0), LargestWeight([0.5, 1.0, 0.0, 2.0]), HalfEntropy()]


def made(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = 2 * torch.randn(2, 4, 9, 8, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, 11, 8, generator=generator, dtype=torch.float64).unbind()
    return [x.to(dtype).requires_grad_() for x in (query, key, value)]


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """Compare to a few roundings of the largest term that gradients are made of."""
    for one, other in zip(ours, theirs, strict=True):
        size = 1e3 * torch.finfo(other.dtype).eps * (1.0 + float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, rtol=0.0, atol=size)


def gradients(policy: Policy, impl: str, leaves: list[torch.Tensor], **options: Any) -> list:
    output = sharpmax.attention(*leaves[:3], policy=policy, impl=impl, enable_gqa=True, **options)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output, *torch.autograd.grad((output * weights).sum(), leaves)]


@of_tensors("reference")
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_values_and_gradients_of_attention(policy: Policy, impl: str) -> None:
    leaves = made(precise(impl))
    expected = gradients(policy, "reference", leaves, is_causal=True)
    for which in (impl, "auto"):
        close(gradients(policy, which, leaves, is_causal=True), expected)
    plain = sharpmax.attention(*leaves, enable_gqa=True, is_causal=True)
    assert (expected[0] - plain).abs().max() > 1e-3


@of_tensors("reference", "composed")
@pytest.mark.parametrize("sink_role", ["key", "apart"])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_with_all_that_shifts_logits(policy: Policy, sink_role: str, impl: str) -> None:
    leaves = made(precise(impl))
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(4, 9, 11, generator=generator).to(precise(impl)).requires_grad_()
    sink = torch.randn(4, generator=generator).to(precise(impl)).requires_grad_()

    def run(impl: str) -> list[torch.Tensor]:
        options = {"attn_mask": bias, "sink": sink, "softcap": 3.0, "sink_role": sink_role}
        return gradients(policy, impl, [*leaves, bias, sink], **options)

    close(run(impl), run("reference"))


def test_gradcheck() -> None:
    slope = torch.tensor([0.5, 1.0, 0.2, 2.0], dtype=torch.float64, requires_grad=True)

    def function(query, key, value, slope):
        return sharpmax.attention(
            query, key, value, policy=LargestWeight(slope), enable_gqa=True, impl="cpu"
        )

    assert torch.autograd.gradcheck(function, (*made(), slope))


@of_tensors("reference")
def test_the_largest_logits_may_tie(impl: str) -> None:
    # Whole numbers, so that logits tie exactly whatever the order of summation.
    query, key, value = (x.detach().round() for x in made(precise(impl)))
    leaves = [query, torch.cat([key, key], dim=2), torch.cat([value, -value], dim=2)]
    leaves = [x.requires_grad_() for x in leaves]
    close(
        gradients(LargestWeight(2.0), impl, leaves, scale=0.25),
        gradients(LargestWeight(2.0), "reference", leaves, scale=0.25),
    )


@pytest.mark.parametrize("policy", [*POLICIES, EntropyTarget(0.8)], ids=repr)
def test_compiled(policy: Policy) -> None:
    torch.compiler.reset()

    def function(query, key, value):
        return sharpmax.attention(query, key, value, policy=policy, enable_gqa=True)

    leaves = made()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(*leaves)
    torch.testing.assert_close(compiled, function(*leaves))
    torch.testing.assert_close(
        torch.autograd.grad(compiled.sum(), leaves),
        torch.autograd.grad(function(*leaves).sum(), leaves),
    )


@of_tensors("reference", "composed")
def test_batched(impl: str) -> None:
    query, key, value = (torch.stack([x, -x, x.flip(2)]).detach() for x in made(precise(impl)))

    def function(query, key, value):
        return sharpmax.attention(
            query, key, value, policy=LargestWeight(2.0), enable_gqa=True, impl=impl
        )

    mapped = torch.func.vmap(function)(query, key, value)
    for k in range(3):
        torch.testing.assert_close(mapped[k], function(query[k], key[k], value[k]))


def test_it_says_why_it_does_not_fit() -> None:
    query, key, value = made()
    with pytest.raises(ValueError, match=r"LargestWeight.slope: .* 4 query heads, got 3"):
        sharpmax.attention(
            query, key, value, policy=LargestWeight([1.0, 2.0, 3.0]), enable_gqa=True, impl="cpu"
        )


def test_a_subclass_that_changes_the_rule_has_no_form_of_its_parent() -> None:
    class Doubled(Exponential):
        def inverse_temperature(self, statistics, tempered=None):
            return 2.0 * super().inverse_temperature(statistics)

    class Renamed(Exponential):
        pass

    assert Doubled(1.0).kernel_form() is None
    assert Renamed(1.0).kernel_form() is not None
    query, key, value = made()
    ours = sharpmax.attention(query, key, value, policy=Doubled(1.0), enable_gqa=True, impl="cpu")
    expected = sharpmax.attention(
        query, key, value, policy=Doubled(1.0), enable_gqa=True, impl="reference"
    )
    torch.testing.assert_close(ours, expected)


def test_json() -> None:
    policy = LargestWeight([0.5, 1.0])
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_dict(policy.to_dict()) == policy


def test_heads() -> None:
    policy = LargestWeight([0.5, 0.0, 2.0])
    assert policy.changes(3).tolist() == [True, False, True]
    assert policy.take_heads([2, 0]) == LargestWeight([2.0, 0.5])
    assert policy.of_head(2) == LargestWeight(2.0)
    assert policy.only_on(np.array([True, True, False])) == LargestWeight([0.5, 0.0, 0.0])
    assert Policy.stack([None, LargestWeight(2.0)]) == LargestWeight([0.0, 2.0])
    assert HalfEntropy().only_on(np.array([True, False])) is None
    assert HalfEntropy().changes(2).all()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_sharpened_and_in_a_calibration(policy: Policy, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data *= 8.0 if weight.ndim > 1 else 1.0
    tokens = torch.randint(64, (1, 20))
    plain = model(tokens).logits
    with sharpmax.sharpen(model, policy, layers=1, heads=[0, 3]):
        sharp = model(tokens).logits
    assert (sharp - plain).abs().max() > 1e-3

    calibration = Calibration.of(model, {1: policy})
    again = Calibration.load(calibration.save(tmp_path / "calibration.json"), model)
    assert again == calibration
    assert again.layers[0].policy == policy
    with sharpmax.sharpen(model, policy, layers=1):
        expected = model(tokens).logits
    with sharpmax.sharpen(model, again):
        torch.testing.assert_close(model(tokens).logits, expected)
    torch.testing.assert_close(model(tokens).logits, plain)
