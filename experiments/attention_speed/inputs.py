"""Make queries, keys and values whose rows are as dispersed or as sharp as a workload needs.

Random queries and keys of unit size give almost uniform rows, which the paper's rule leaves alone.
So the logits get a size at which the policies act.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sharpmax._statistics import Rows
from sharpmax.policies import Policy

__all__ = ["Character", "Inputs", "Sample", "Shape", "make_inputs", "sample_rows"]

Character = Literal["dispersed", "sharp"]

ENTROPY = 5.0
"""Approximate entropy of dispersed rows, in nats."""

SHORT = 128
"""Sharp rows over fewer keys than this are sharp before any policy acts."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of an attention problem, and the character of its rows.

    Attributes:
        queries: Number of queries.
        keys: Number of keys.
        width: Width of queries, keys and values.
        heads: Number of query heads.
        key_heads: Number of key heads.
        is_causal: Whether query i sees only keys up to i.
        character: "dispersed" or "sharp" rows.
    """

    queries: int
    keys: int
    width: int = 64
    heads: int = 1
    key_heads: int = 1
    is_causal: bool = False
    character: Character = "dispersed"


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values of batch 1, [batch, heads, length, width]."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def group(self) -> int:
        """Number of query heads per key head."""
        return self.shape.heads // self.shape.key_heads

    def to(self, device: str, dtype: str) -> Inputs:
        """Return the same inputs on a device, rounded to a dtype."""
        tensors = (self.query, self.key, self.value)
        return Inputs(self.shape, *(x.to(device, getattr(torch, dtype)) for x in tensors))

    def rounded(self, dtype: str) -> Inputs:
        """Return inputs in single precision that a dtype holds exactly."""
        return self.to("cpu", dtype).to("cpu", "float32")


@dataclass(frozen=True)
class Sample:
    """Some rows of an attention problem, computed by the mathematics alone.

    Attributes:
        rows: The queries.
        entropy: Mean entropy before sharpening, in nats.
        inverse_temperature: Mean beta of the policy.
        largest_weight: Smallest, over rows, of the largest weight after sharpening.
        output: Attention output, [batch, heads, rows, width].
    """

    rows: tuple[int, ...]
    entropy: float
    inverse_temperature: float
    largest_weight: float
    output: Tensor


def make_inputs(shape: Shape, seed: int = 0) -> Inputs:
    """Draw inputs of the given shape and character.

    "dispersed": logits are normal with the deviation s at which a row over n keys has entropy
    H = log n - s^2 / 2 = 5 nats. "sharp": each query points at one visible key, drawn at random,
    with a logit of about log n. That key holds about half of the row's weight, and nearly all of
    it after sharpening.

    Args:
        shape: Shape and character.
        seed: Seed of the draw.

    Returns:
        The inputs.

    Example:
        >>> shape = Shape(queries=8, keys=512, heads=2, key_heads=2, character="sharp")
        >>> inputs = make_inputs(shape)
        >>> inputs.query.shape, inputs.key.shape
        (torch.Size([1, 2, 8, 64]), torch.Size([1, 2, 512, 64]))
    """
    generator = torch.Generator().manual_seed(seed)
    queries, keys, width, heads = shape.queries, shape.keys, shape.width, shape.heads
    key = torch.randn(1, shape.key_heads, keys, width, generator=generator)
    value = torch.randn(1, shape.key_heads, keys, width, generator=generator)
    visible = torch.full((queries,), keys)
    if shape.is_causal:
        visible = torch.minimum(torch.arange(queries) + 1, visible)
    length = visible.log()
    if shape.character == "dispersed":
        # Below 0.5 a row is nearly uniform; short rows cannot reach 5 nats anyway.
        deviation = (2 * (length - ENTROPY)).clamp(min=0.25).sqrt()
        query = torch.randn(1, heads, queries, width, generator=generator)
        # All queries of a length get the same norm, so that no row is sharper by chance.
        query *= deviation[:, None] * math.sqrt(width) / query.norm(dim=-1, keepdim=True)
    else:
        drawn = torch.rand(heads, queries, generator=generator)
        targets = (drawn * visible).long().clamp(max=keys - 1)
        pointed_at = key[0].repeat_interleave(heads // shape.key_heads, dim=0)
        pointed_at = pointed_at.gather(1, targets[..., None].expand(-1, -1, width))
        logit = length + torch.where(visible < SHORT, 8.0, 1.0)
        size = logit[:, None] * math.sqrt(width) / pointed_at.square().sum(dim=-1, keepdim=True)
        query = (pointed_at * size)[None]
    return Inputs(shape, query, key, value)


def sample_rows(inputs: Inputs, policy: Policy, count: int = 8) -> Sample:
    """Compute some rows by the mathematics alone, without any kernel.

    Args:
        inputs: The inputs.
        policy: The policy.
        count: Number of queries per head, spread evenly from the first to the last.

    Returns:
        The rows' statistics and outputs.

    Example:
        >>> from sharpmax.policies import Identity
        >>> sample = sample_rows(make_inputs(Shape(queries=64, keys=2048)), Identity())
        >>> 4.0 < sample.entropy < 6.0, sample.inverse_temperature
        (True, 1.0)
    """
    shape = inputs.shape
    picked = tuple(sorted(set(torch.linspace(0, shape.queries - 1, count).long().tolist())))
    entropies, betas, largest, outputs = [], [], [], []
    for row in picked:
        seen = min(row + 1, shape.keys) if shape.is_causal else shape.keys
        key, value = inputs.key[:, :, :seen], inputs.value[:, :, :seen]
        # Query heads that share a key head are adjacent, so no key is copied.
        query = inputs.query[:, :, row].view(1, -1, inputs.group, shape.width)
        logits = query @ key.transpose(-2, -1) / math.sqrt(shape.width)
        rows = Rows(logits.view(1, shape.heads, 1, seen))
        beta = policy.over_queries().of_rows(rows)
        weights = rows.weights(beta)
        entropies.append(rows.statistics.entropy().mean())
        betas.append(beta.mean())
        largest.append(weights.amax(dim=-1).min())
        outputs.append((weights.view_as(logits) @ value).view(1, shape.heads, 1, -1))
    return Sample(
        picked,
        float(torch.stack(entropies).mean()),
        float(torch.stack(betas).mean()),
        float(torch.stack(largest).min()),
        torch.cat(outputs, dim=2),
    )
