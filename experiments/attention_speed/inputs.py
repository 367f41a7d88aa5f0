"""Queries, keys and values whose rows are as dispersed or as sharp as a benchmark wants them.

Random queries and keys of unit size make rows that hardly differ from uniform ones, on which the
paper's rule does nothing at all. So the logits are given the size at which policies have work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sharpmax._statistics import Rows
from sharpmax.policies import Policy

__all__ = ["Character", "Examined", "Inputs", "examine", "make_inputs"]

Character = Literal["dispersed", "sharp"]

ENTROPY = 5.0
"""About what the rows of dispersed inputs have, in nats."""

SHORT = 128
"""Rows of sharp inputs that see fewer keys are sharp from the start, whatever the policy."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one attention: [batch, heads, length, width], float32."""

    query: Tensor
    key: Tensor
    value: Tensor
    is_causal: bool

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass(frozen=True)
class Examined:
    """What the rows of a sample are like, and what attention over them gives.

    Attributes:
        rows: Which queries.
        entropy: Mean entropy before sharpening, in nats.
        inverse_temperature: Mean beta that the policy gives.
        largest_weight: The largest weight after sharpening, in the row where it is least.
        output: Attention of these rows by the mathematics alone, [batch, heads, rows, width].
    """

    rows: tuple[int, ...]
    entropy: float
    inverse_temperature: float
    largest_weight: float
    output: Tensor


def make_inputs(
    character: Character,
    *,
    queries: int,
    keys: int,
    width: int,
    heads: int,
    key_heads: int | None = None,
    is_causal: bool = False,
    seed: int = 0,
) -> Inputs:
    """Draw inputs.

    "dispersed": logits are normal, of the deviation s at which a row over n keys has
    H = log n - s^2 / 2 = 5 nats. "sharp": each query points at one key, drawn at random from
    those it sees, with a logit of about log n, so that this key holds about half of the weight of
    its row, and a policy that sharpens gives it nearly all.

    Args:
        character: "dispersed" or "sharp".
        queries: Number of queries.
        keys: Number of keys.
        width: Of queries, keys and values.
        heads: Number of query heads.
        key_heads: Number of key heads, if fewer.
        is_causal: Query i sees keys up to i.
        seed: Of the draw.

    Returns:
        The inputs, of batch 1.

    Example:
        >>> inputs = make_inputs("sharp", queries=8, keys=512, width=64, heads=2)
        >>> inputs.query.shape, inputs.key.shape
        (torch.Size([1, 2, 8, 64]), torch.Size([1, 2, 512, 64]))
    """
    generator = torch.Generator().manual_seed(seed)
    key_heads = heads if key_heads is None else key_heads
    key = torch.randn(1, key_heads, keys, width, generator=generator)
    value = torch.randn(1, key_heads, keys, width, generator=generator)
    visible = torch.full((queries,), keys)
    if is_causal:
        visible = torch.minimum(torch.arange(queries) + 1, visible)
    length = visible.log()
    if character == "dispersed":
        # Below 0.5 a row is as good as uniform; short rows cannot have as many nats anyway.
        deviation = (2 * (length - ENTROPY)).clamp(min=0.25).sqrt()
        query = torch.randn(1, heads, queries, width, generator=generator)
        # Every query is as long as the deviation says, so that its row is no sharper by accident.
        query *= deviation[:, None] * math.sqrt(width) / query.norm(dim=-1, keepdim=True)
    else:
        drawn = torch.rand(heads, queries, generator=generator)
        targets = (drawn * visible).long().clamp(max=keys - 1)
        pointed_at = key[0].repeat_interleave(heads // key_heads, dim=0)
        pointed_at = pointed_at.gather(1, targets[..., None].expand(-1, -1, width))
        logit = length + torch.where(visible < SHORT, 8.0, 1.0)
        size = logit[:, None] * math.sqrt(width) / pointed_at.square().sum(dim=-1, keepdim=True)
        query = (pointed_at * size)[None]
    return Inputs(query, key, value, is_causal)


def examine(inputs: Inputs, policy: Policy, sample: int = 8) -> Examined:
    """Compute some rows with the mathematics alone, away from every kernel.

    Args:
        inputs: The inputs.
        policy: The policy.
        sample: How many queries of each head, evenly from the first to the last.

    Returns:
        What these rows are like.

    Example:
        >>> from sharpmax.policies import Identity
        >>> inputs = make_inputs("dispersed", queries=64, keys=2048, width=64, heads=1)
        >>> examined = examine(inputs, Identity())
        >>> 4.0 < examined.entropy < 6.0, examined.inverse_temperature
        (True, 1.0)
    """
    heads, queries, width = inputs.query.shape[1:]
    keys = inputs.key.shape[2]
    picked = tuple(sorted(set(torch.linspace(0, queries - 1, sample).long().tolist())))
    entropies, betas, largest, outputs = [], [], [], []
    for row in picked:
        seen = min(row + 1, keys) if inputs.is_causal else keys
        key, value = inputs.key[:, :, :seen], inputs.value[:, :, :seen]
        # Query heads that share a key head stand together, so that no key is copied.
        query = inputs.query[:, :, row].view(1, -1, inputs.group, width)
        logits = query @ key.transpose(-2, -1) / math.sqrt(width)
        rows = Rows(logits.view(1, heads, 1, seen))
        beta = policy.over_queries().of_rows(rows)
        weights = rows.weights(beta)
        entropies.append(rows.statistics.entropy().mean())
        betas.append(beta.mean())
        largest.append(weights.amax(dim=-1).min())
        outputs.append((weights.view_as(logits) @ value).view(1, heads, 1, -1))
    return Examined(
        picked,
        float(torch.stack(entropies).mean()),
        float(torch.stack(betas).mean()),
        float(torch.stack(largest).min()),
        torch.cat(outputs, dim=2),
    )
