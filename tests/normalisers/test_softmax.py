from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
import sharpmax
from sharpmax.normalisers import Softmax
from sharpmax.policies import Exponential, Paper

LOGITS = torch.randn(2, 3, 4, 40, generator=torch.Generator().manual_seed(0))


def test_is_the_paper() -> None:
    ours = Softmax(Paper(warn=False)).weights(LOGITS)
    for row, weights in zip(LOGITS.flatten(0, 2), ours.flatten(0, 2), strict=True):
        expected = oracle.figure_4(row.double().numpy())[1]
        np.testing.assert_allclose(weights.numpy(), expected, atol=1e-6)


def test_without_a_policy_is_softmax() -> None:
    visible = LOGITS > -0.5
    expected = sharpmax.softmax(LOGITS, where=visible)
    torch.testing.assert_close(Softmax().weights(LOGITS, visible), expected)


def test_a_parameter_a_head() -> None:
    reference = [0.5, 1.0, 2.0]
    ours = Softmax(Exponential(reference)).weights(LOGITS)
    for head, value in enumerate(reference):
        expected = sharpmax.softmax(LOGITS[:, head], Exponential(value))
        torch.testing.assert_close(ours[:, head], expected)


@pytest.mark.parametrize("detach", [False, True])
def test_gradient_through_the_temperature(detach: bool) -> None:
    reference = torch.tensor(0.5, requires_grad=True)
    normaliser = Softmax(Exponential(reference), detach_temperature=detach)
    logits = LOGITS.clone().requires_grad_()
    normaliser.weights(logits).square().sum().backward()
    assert (reference.grad is None) == detach
