"""What a normaliser is: the map from the logits of a row to its weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class Normaliser(nn.Module, ABC):
    """A map from the logits e of a row to its weights; the last axis is that of the keys.

    Whatever a normaliser does, these hold: what is invisible has weight 0, exactly, and does not
    count in n; a row that sees no key has no weights but zeros; the computation is in single
    precision at least and the result in the dtype that came in. Learned parameters have one entry a
    head, [heads, 1, ...], and nothing mixes heads, so that heads may be stacked that know nothing
    of each other. `weights` of one without parameters takes logits [..., keys] of any shape.

    A normaliser of your own defines `weights`. One that makes logits in its own way overrides
    `logits`; one whose weights depend on more than logits overrides `forward`, and
    `sharpmax.attention` then has no place for a softcap or a bias and refuses them.
    """

    maps: ClassVar[int] = 1
    """How many maps of logits make one map of weights. With 2, there are twice as many heads of
    queries and of keys as heads of weights: 2h and 2h + 1 make h."""

    normalised: bool = True
    """Whether the weights of a row with at least one visible key always sum to one."""

    def logits(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """e = scale q.k, in single precision at least.

        Args:
            query: [batch, heads, queries, width].
            key: [batch, heads, keys, width].
            scale: of the product.

        Returns:
            [batch, heads, queries, keys].
        """
        return scale * promoted(query) @ promoted(key).mT

    @abstractmethod
    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The weights of rows of logits.

        Args:
            logits: [batch, heads, queries, keys].
            visible: booleans that broadcast to `logits`; True marks what may be seen. A logit of
                -inf is not seen either.

        Returns:
            Weights of the shape of `logits` (half as many heads if `maps` is 2) and their dtype.

        Raises:
            TypeError, ValueError: for a `visible` that is not boolean or does not broadcast.
        """

    def forward(
        self, query: Tensor, key: Tensor, *, scale: float, visible: Tensor | None = None
    ) -> Tensor:
        """Weights [batch, heads, queries, keys] of queries and keys, in the dtype of `query`."""
        return self.weights(self.logits(query, key, scale), visible).to(query.dtype)


def promoted(values: Tensor) -> Tensor:
    """`values` in single precision at least."""
    return values.float() if values.dtype.itemsize < 4 else values


def seen(logits: Tensor, visible: Tensor | None) -> Tensor:
    """What is visible, in the shape of `logits`."""
    if visible is None:
        return torch.ones_like(logits, dtype=torch.bool)
    if visible.dtype != torch.bool:
        raise TypeError(f"visible: expected booleans, got {visible.dtype}")
    try:
        return visible.broadcast_to(logits.shape)
    except RuntimeError:
        raise ValueError(
            f"visible: expected a shape that broadcasts to {tuple(logits.shape)}, "
            f"got {tuple(visible.shape)}"
        ) from None


def prepared(logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits in single precision at least, 0 where they are invisible, and what is visible.

    What is invisible may be anything, NaN included, and gets no gradient.
    """
    visible = seen(logits, visible) & (logits != -math.inf)
    return torch.where(visible, promoted(logits), 0.0), visible


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """softmax(e) of what is visible; zeros where nothing is."""
    if logits.shape[-1] == 0:
        return logits
    # A finite filler: a row of -inf alone would be NaN, in the gradient too.
    lowest = torch.finfo(logits.dtype).min
    return torch.where(visible, torch.where(visible, logits, lowest).softmax(-1), 0.0)


def visible_count(visible: Tensor) -> Tensor:
    """n of each row, at least 1: [..., 1]."""
    return visible.sum(-1, keepdim=True).clamp(min=1)
