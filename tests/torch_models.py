"""Small PyTorch models that are not of transformers, with attention of every kind."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

WIDTH, HEADS = 16, 2


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention, or attention to a memory, through scaled_dot_product_attention."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.query, self.memory = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.causal = causal

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        key, value = self.memory(x if memory is None else memory).chunk(2, -1)
        inputs = [heads_of(each) for each in (self.query(x), key, value)]
        found = F.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=self.causal)
        return found.transpose(1, 2).flatten(-2)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), attention
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        x = x + self.attn(self.norm(x), *rest)
        return x + self.mlp(x)


class Stack(nn.Module):
    """Blocks one after another, each called `times` times with its own weights."""

    def __init__(self, *attentions: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(each) for each in attentions)
        self.times = times

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        for _ in range(self.times):
            for block in self.blocks:
                x = block(x, *rest)
        return x


class ByHand(nn.Module):
    """Attention that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (heads_of(each) for each in self.project(x).chunk(3, -1))
        scores = query @ key.transpose(-2, -1) / 8**0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return (weights @ value).transpose(1, 2).flatten(-2)


class Flex(nn.Module):
    """Attention through flex_attention."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project, self.options = nn.Linear(WIDTH, 3 * WIDTH), options

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (heads_of(each) for each in self.project(x).chunk(3, -1))
        found: Any = flex_attention(query, key, value, **self.options)
        return found.transpose(1, 2).flatten(-2)


def made(model: nn.Module) -> nn.Module:
    """The model with reproducible weights, large enough that attention matters."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        with torch.no_grad():
            weight.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def tokens(length: int = 8, batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(seed))
