from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.models._rule import Rule
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
    Monotone,
    Paper,
    Policy,
    Polynomial,
)

SWITCHED = [
    EntropyTarget(target=0.5),
    EntropyTarget(target=[0.5, 0.6, 0.7]),
    Exponential(reference=0.5, strength=[1.0, 0.5, 2.0]),
    Constant(2.0),
    LogLength(scale=2.0),
    Polynomial((1.0, 1.0), threshold=[0.1, 0.2, 0.3]),
]
BESIDE = [Hard(), Paper(warn=False), Monotone((0.5, 1.0), (1.0, 3.0))]


def betas(policy: Policy) -> torch.Tensor:
    logits = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    return sharpmax.inverse_temperature(logits, policy.over_queries())


@pytest.mark.parametrize("policy", SWITCHED, ids=repr)
def test_heads_that_are_not_chosen_have_exactly_one(policy: Policy) -> None:
    rule = Rule.make(policy, count=3, heads=[1])
    assert rule.chosen is None
    assert rule.policy is not None
    whole, part = betas(policy), betas(rule.policy)
    assert (whole > 1).any(dim=1).all()
    assert (part[[0, 2]] == 1).all()
    assert torch.equal(part[1], whole[1])
    assert Policy.from_json(rule.policy.to_json()) == rule.policy


@pytest.mark.parametrize("policy", BESIDE, ids=repr)
def test_other_policies_have_the_choice_beside_them(policy: Policy) -> None:
    rule = Rule.make(policy, count=3, heads=(1, 2))
    assert rule.policy is policy
    assert rule.chosen is not None
    assert rule.chosen.tolist() == [False, True, True]
    assert Rule.make(policy, count=3, heads=range(3)).chosen is None


def test_a_parameter_that_learns_goes_on_learning() -> None:
    strength = torch.ones(3, requires_grad=True)
    rule = Rule.make(Exponential(0.5, strength), count=3, heads=[0])
    assert rule.policy is not None
    betas(rule.policy).sum().backward()
    assert strength.grad is not None
    assert (strength.grad != 0).tolist() == [True, False, False]


def test_a_slice_of_the_heads() -> None:
    rule = Rule.make(
        Monotone(np.arange(8.0).reshape(4, 2), np.ones((4, 2))), count=4, gain=range(4)
    ).between(1, 3)
    assert isinstance(rule.policy, Monotone)
    assert rule.policy.entropies.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert rule.gain is not None
    assert rule.gain.tolist() == [1.0, 2.0]
    # What is not over heads stays whole, even if it has as many entries as there are heads.
    knots = Monotone((0.0, 1.0, 2.0, 3.0), (1.0, 1.0, 2.0, 3.0))
    assert Rule.make(knots, count=4).between(0, 2).policy == knots
    polynomial = Polynomial((1.0, 2.0, 3.0, 4.0), threshold=[0.1, 0.2, 0.3, 0.4])
    part = Rule.make(polynomial, count=4).between(2, 4).policy
    assert part == Polynomial((1.0, 2.0, 3.0, 4.0), threshold=[0.3, 0.4])
    chosen = Rule.make(Hard(), count=4, heads=[3]).between(2, 4).chosen
    assert chosen is not None
    assert chosen.tolist() == [False, True]


def test_nothing_to_do_is_stock() -> None:
    assert Rule().is_stock
    assert Rule.make(Identity(), count=4).is_stock
    assert Rule.make(Exponential(1.0), count=4, heads=()).is_stock
    assert not Rule.make(None, count=2, gain=[1.0, 2.0]).is_stock


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Exponential.reference: .* 4 query heads, got 3"):
        Rule.make(Exponential([1.0, 2.0, 3.0]), count=4)
    with pytest.raises(ValueError, match=r"heads: expected numbers from 0 to 3, got \[4\]"):
        Rule.make(Exponential(1.0), count=4, heads=[0, 4])
    with pytest.raises(ValueError, match="heads: expected None for a layer"):
        Rule.make(Exponential(1.0), heads=[0])
    with pytest.raises(ValueError, match="gain: expected one factor for each of 4 heads"):
        Rule.make(None, count=4, gain=[1.0])
