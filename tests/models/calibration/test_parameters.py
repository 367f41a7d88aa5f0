"""What calibration may change in a head; the families of models have a file of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sharpmax.models._calibration.parameters import FAMILIES, Family
from sharpmax.models._inspect import Layer
from sharpmax.policies import Constant, Exponential


def _layer(index: int, heads: int | None) -> Layer:
    return Layer(index, f"layers.{index}", torch.nn.Identity(), "global", heads, None)


LAYERS = [_layer(0, 2), _layer(3, 3)]
REFERENCES = {0: torch.tensor([1.0, 2.0]), 3: torch.tensor([0.5, 1.5, 2.5])}


def _family(name: Any, **options: Any) -> Family:
    return Family(name, LAYERS, references=REFERENCES, **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_zeros_change_nothing(name: str) -> None:
    family = _family(name)
    neutral = family.neutral()
    assert neutral.shape == (1 + ("+" in name), 5)
    assert all(rule.is_stock for rule in family.rules(neutral).values())
    assert set(family.rules(neutral)) == {0, 3}


def test_numbers_go_to_their_heads() -> None:
    numbers = torch.tensor([[0.0, 0.0, 0.1, 0.2, -0.3], [0.0, 0.0, 1.0, 0.0, -1.0]])
    rules = _family("constant+gain", flatten=True).rules(numbers)
    assert rules[0].is_stock
    policy = rules[3].policy
    assert isinstance(policy, Constant)
    torch.testing.assert_close(torch.as_tensor(policy.beta), numbers[0, 2:].exp())
    assert rules[3].gain is not None
    torch.testing.assert_close(rules[3].gain, numbers[1, 2:].exp())


def test_the_law_of_the_entropy_has_the_references_of_its_heads() -> None:
    rules = _family("entropy").rules(torch.tensor([[0.5, 0.0, 0.0, 0.0, 1.0]]))
    for index, strength in ((0, [0.5, 0.0]), (3, [0.0, 0.0, 1.0])):
        policy = rules[index].policy
        assert isinstance(policy, Exponential)
        torch.testing.assert_close(policy.reference, REFERENCES[index])
        torch.testing.assert_close(policy.strength, torch.tensor(strength))
        assert rules[index].gain is None


@pytest.mark.parametrize("name", FAMILIES)
def test_rules_can_be_differentiated_even_at_zero(name: str) -> None:
    family = _family(name)
    numbers = family.neutral().requires_grad_()
    total = torch.zeros(())
    for rule in family.rules(numbers).values():
        if rule.policy is not None:
            total = total + sum(torch.as_tensor(v).sum() for v in vars(rule.policy).values())
        if rule.gain is not None:
            total = total + rule.gain.sum()
    total.backward()
    assert numbers.grad is not None
    assert numbers.grad.ne(0).all()


def test_numbers_are_kept_within_their_limits() -> None:
    far = torch.tensor([[-9.0, 9.0, 0.1, 0.0, 0.0], [-9.0, 9.0, 0.1, 0.0, 0.0]])
    low, high = _family("constant+gain").project(far)[:, :2].T
    assert low.tolist() == pytest.approx([0.0, -torch.tensor(4.0).log().item()])
    assert high.exp().tolist() == pytest.approx([8.0, 4.0])
    assert _family("constant", flatten=True).project(far[:1])[0, 0].exp() == pytest.approx(1 / 8)
    assert _family("entropy").project(far[:1])[0, :3].tolist() == pytest.approx([0.0, 1.0, 0.1])


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="family: expected one of constant, entropy, gain"):
        _family("temperature")
    with pytest.raises(ValueError, match="flatten: expected False with family 'entropy'"):
        _family("entropy", flatten=True)
    with pytest.raises(ValueError, match=r"the number of heads of layers\.1 cannot be seen"):
        Family("gain", [_layer(1, None)])
