"""Define what a normaliser is: a map from the logits of a row to its weights."""

from __future__ import annotations

import inspect
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from sharpmax._arrays import broadcast


class Normaliser(nn.Module):
    """A map from the logits e of a row to its weights; the last axis is that of the keys.

    For every normaliser: hidden keys have weight 0 exactly and do not count in n; a row that sees
    no key has zero weights; the computation is in single precision at least, and the result has the
    dtype of the input. Learned parameters have one entry per head, [heads, 1, ...], and nothing
    mixes heads, so independent heads can be stacked. `weights` of a normaliser without parameters
    takes logits [..., keys] of any shape.

    To write a normaliser, define `weigh`; without it, this is softmax. Override `logits` to make
    logits in another way. Override `forward` if weights depend on more than logits;
    `sharpmax.attention` then accepts neither a softcap nor a bias.
    """

    maps: ClassVar[int] = 1
    """The number of maps of logits per map of weights. With 2, query and key heads 2h and 2h + 1
    make head h of the weights."""

    normalised: bool = True
    """Whether the weights of a row with at least one visible key always sum to one."""

    def logits(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Compute e = scale q.k, in single precision at least.

        Args:
            query: [batch, heads, queries, width].
            key: [batch, heads, keys, width].
            scale: the factor of the product.

        Returns:
            [batch, heads, queries, keys].
        """
        return scale * promoted(query) @ promoted(key).mT

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the weights of rows of logits.

        Args:
            logits: [batch, heads, queries, keys].
            visible: booleans that broadcast to `logits`; True means visible. A logit of
                -inf is never visible.

        Returns:
            Weights of the shape of `logits` (half as many heads if `maps` is 2) and their dtype.

        Raises:
            TypeError, ValueError: for a `visible` that is not boolean or does not broadcast.
        """
        visible = seen(logits, visible) & (logits != -math.inf)
        values = torch.where(visible, promoted(logits), 0.0)
        return self.weigh(values, visible).to(logits.dtype)

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        """Compute the weights of rows in single precision at least, where hidden logits are 0.

        Hidden logits get no gradient. Both arguments have the shape of `weights`.
        """
        return masked_softmax(logits, visible)

    def forward(
        self, query: Tensor, key: Tensor, *, scale: float, visible: Tensor | None = None
    ) -> Tensor:
        """Compute weights [batch, heads, queries, keys], in the dtype of `query`."""
        return self.weights(self.logits(query, key, scale), visible).to(query.dtype)

    def extra_repr(self) -> str:
        """Return the arguments that the normaliser was made with."""
        names = inspect.signature(type(self)).parameters
        return ", ".join(f"{name}={getattr(self, name)}" for name in names if hasattr(self, name))


def promoted(values: Tensor) -> Tensor:
    """`values` in single precision at least."""
    return values.float() if values.dtype.itemsize < 4 else values


def seen(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Visibility in the shape of `logits`."""
    if visible is None:
        return torch.ones_like(logits, dtype=torch.bool)
    if visible.dtype != torch.bool:
        raise TypeError(f"visible: expected booleans, got {visible.dtype}")
    shown: Tensor = broadcast("visible", visible, tuple(logits.shape))
    return shown


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """softmax(e) of visible logits; zeros for an empty row."""
    if logits.shape[-1] == 0:
        return logits
    # A finite filler: a row of -inf alone would be NaN, in the gradient too.
    lowest = torch.finfo(logits.dtype).min
    return torch.where(visible, torch.where(visible, logits, lowest).softmax(-1), 0.0)


def visible_count(visible: Tensor, like: Tensor) -> Tensor:
    """n of each row, at least 1: [..., 1], in the dtype of `like`."""
    return visible.sum(-1, keepdim=True).clamp(min=1).to(like.dtype)
