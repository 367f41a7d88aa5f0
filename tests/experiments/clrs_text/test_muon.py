from __future__ import annotations

import torch
from torch import nn

from experiments.clrs_text.muon import Muon


def test_it_is_muon() -> None:
    shapes = [(8, 8), (8, 8), (16, 8), (8, 16), (8, 16)]
    start = [torch.randn(shape) for shape in shapes]
    one, other = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    optimisers = (
        Muon(one, lr=0.02, weight_decay=0.01),
        torch.optim.Muon(other, lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(5):
        for mine, its in zip(one, other, strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for first, mine, its in zip(start, one, other, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(mine, first, atol=0.01)
