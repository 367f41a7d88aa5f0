"""The numbers that calibration fits for each head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sharpmax.models._calibration.parameters import FAMILIES, HeadParameters
from sharpmax.models._inspect import Layer
from sharpmax.policies import Constant, Exponential


def _layer(index: int, heads: int | None) -> Layer:
    return Layer(index, f"layers.{index}", torch.nn.Identity(), "global", heads, None)


LAYERS = [_layer(0, 2), _layer(3, 3)]
REFERENCES = {0: torch.tensor([1.0, 2.0]), 3: torch.tensor([0.5, 1.5, 2.5])}


def _parameters(name: Any, **options: Any) -> HeadParameters:
    return HeadParameters(name, LAYERS, references=REFERENCES, **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_zeros_change_nothing(name: str) -> None:
    parameters = _parameters(name)
    neutral = parameters.neutral()
    assert neutral.shape == (1 + ("+" in name), 5)
    assert all(rule.is_stock for rule in parameters.rules(neutral).values())
    assert set(parameters.rules(neutral)) == {0, 3}


def test_numbers_go_to_their_heads() -> None:
    numbers = torch.tensor([[0.0, 0.0, 0.1, 0.2, -0.3], [0.0, 0.0, 1.0, 0.0, -1.0]])
    rules = _parameters("constant+gain", flatten=True).rules(numbers)
    assert rules[0].is_stock
    policy = rules[3].policy
    assert isinstance(policy, Constant)
    torch.testing.assert_close(torch.as_tensor(policy.beta), numbers[0, 2:].exp())
    assert rules[3].gain is not None
    torch.testing.assert_close(rules[3].gain, numbers[1, 2:].exp())


def test_the_law_of_the_entropy_has_the_references_of_its_heads() -> None:
    rules = _parameters("entropy").rules(torch.tensor([[0.5, 0.0, 0.0, 0.0, 1.0]]))
    for index, strength in ((0, [0.5, 0.0]), (3, [0.0, 0.0, 1.0])):
        policy = rules[index].policy
        assert isinstance(policy, Exponential)
        torch.testing.assert_close(policy.reference, REFERENCES[index])
        torch.testing.assert_close(policy.strength, torch.tensor(strength))
        assert rules[index].gain is None


@pytest.mark.parametrize("name", FAMILIES)
def test_rules_can_be_differentiated_even_at_zero(name: str) -> None:
    parameters = _parameters(name)
    numbers = parameters.neutral().requires_grad_()
    total = torch.zeros(())
    for rule in parameters.rules(numbers).values():
        if rule.policy is not None:
            total = total + sum(torch.as_tensor(v).sum() for v in vars(rule.policy).values())
        if rule.gain is not None:
            total = total + rule.gain.sum()
    total.backward()
    assert numbers.grad is not None
    assert numbers.grad.ne(0).all()


def test_numbers_are_kept_within_their_limits() -> None:
    far = torch.tensor([[-9.0, 9.0, 0.1, 0.0, 0.0], [-9.0, 9.0, 0.1, 0.0, 0.0]])
    low, high = _parameters("constant+gain").project(far)[:, :2].T
    assert low.tolist() == pytest.approx([0.0, -torch.tensor(4.0).log().item()])
    assert high.exp().tolist() == pytest.approx([8.0, 4.0])
    assert _parameters("constant", flatten=True).project(far[:1])[0, 0].exp() == pytest.approx(
        1 / 8
    )
    assert _parameters("entropy").project(far[:1])[0, :3].tolist() == pytest.approx([0.0, 1.0, 0.1])


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="family: expected one of constant, entropy, gain"):
        _parameters("temperature")
    with pytest.raises(ValueError, match="flatten: expected False with family 'entropy'"):
        _parameters("entropy", flatten=True)
    with pytest.raises(ValueError, match=r"expected layers\.1 to name its number of heads"):
        HeadParameters("gain", [_layer(1, None)])
