from __future__ import annotations

import pytest
import torch

import sharpmax
from sharpmax import policies
from sharpmax.normalisers import Hard

LOGITS = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).round(decimals=0)


@pytest.mark.parametrize("straight_through", [False, True])
def test_is_the_policy(straight_through: bool) -> None:
    ours = Hard(straight_through).weights(LOGITS)
    torch.testing.assert_close(ours, sharpmax.softmax(LOGITS, policies.Hard()))


def test_gradient_of_softmax() -> None:
    upstream = torch.randn(4, 30)
    gradients = []
    for weigh in (Hard(straight_through=True).weights, lambda x: x.softmax(-1)):
        logits = LOGITS.clone().requires_grad_()
        (weigh(logits) * upstream).sum().backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(*gradients)
