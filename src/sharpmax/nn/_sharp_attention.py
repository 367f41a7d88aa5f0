"""Provide multi-head attention with a temperature policy, as a module."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sharpmax._attention import Implementation, attention, masked_below
from sharpmax.normalisers import Normaliser
from sharpmax.policies import Identity, Policy


class SharpAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with the inverse temperature that a policy gives each row.

    The arguments, the call and the names of the weights are those of PyTorch's module, so the two
    can exchange weights. Four arguments are added:

    Args:
        embed_dim: width of the model.
        num_heads: number of heads.
        policy: gives the inverse temperature of each row; a parameter with one axis has one entry
            per head. The parameters of a `LearnedPolicy` are parameters of this module. You can
            replace it at any time.
        detach_temperature: treat the inverse temperature as a constant in differentiation.
        impl: as in `sharpmax.attention`.
        normaliser: makes the weights from the logits instead of softmax (`sharpmax.normalisers`),
            in place of a policy; its parameters are parameters of this module. It must have one map
            per head.
        **kwargs: everything else that `torch.nn.MultiheadAttention` takes.

    As in PyTorch, True in a boolean mask of this module means *hidden* (the opposite of
    `sharpmax.attention`), and `need_weights=True`, the default, materialises the weights: pass
    False for linear memory. A query that sees no key gives the bias of the output projection.

    Example:
        >>> import torch
        >>> from sharpmax.nn import SharpAttention
        >>> from sharpmax.policies import Exponential
        >>> layer = SharpAttention(32, 4, policy=Exponential(reference=1.0), batch_first=True)
        >>> x = torch.randn(2, 10, 32)
        >>> output, _ = layer(x, x, x, need_weights=False)
        >>> output.shape
        torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        policy: Policy | None = None,
        detach_temperature: bool = False,
        impl: Implementation = "auto",
        normaliser: Normaliser | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if normaliser is not None and normaliser.maps != 1:
            raise ValueError(f"normaliser: expected one with one map per head, got {normaliser!r}")
        self.policy = Identity() if policy is None else policy
        self.normaliser = normaliser
        self.detach_temperature = detach_temperature
        self.impl: Implementation = impl
        self._packed = self._qkv_same_embed_dim
        # PyTorch's encoder layers have a fast path that reads the weights of this module without
        # calling it, which would silently skip the policy. This flag keeps them off it.
        self._qkv_same_embed_dim = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "policy" and name in self.__dict__.get("_modules", {}):
            del self._modules[name]  # a learned policy may be replaced by one that is not a module
        super().__setattr__(name, value)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend. The arguments are those of `torch.nn.MultiheadAttention.forward`.

        Returns:
            The output, and the weights if asked for, averaged over heads or not.

        Raises:
            ValueError: if `is_causal` comes without `attn_mask`, as in PyTorch.
        """
        if is_causal and attn_mask is None:
            raise ValueError(
                "is_causal: expected attn_mask with it, since it is only a hint, got None"
            )
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))

        query, key, value = self._project(query, key, value)
        # The causal hint replaces the mask only if nothing else has to be in the mask.
        hint = is_causal and key_padding_mask is None and key.shape == query.shape
        mask = None if hint else self._mask(query, key, key_padding_mask, attn_mask)
        arguments: dict[str, Any] = {
            "policy": self.policy,
            "normaliser": self.normaliser,
            "attn_mask": mask,
            "is_causal": hint,
            "detach_temperature": self.detach_temperature,
            "dropout_p": self.dropout if self.training else 0.0,
        }
        heads = attention(query, key, value, impl=self.impl, **arguments)
        output = self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
        weights = None
        if need_weights:
            weights = self._weights(query, key, arguments, average_attn_weights)
        if not batched:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return (output.transpose(0, 1) if self.batch_first else output), weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs [length, batch, width] to heads [batch, heads, length, width per head]."""
        if self._packed:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias: Tensor | None = self.in_proj_bias
        biases = [None] * 3 if bias is None else bias.chunk(3)
        projected = [
            F.linear(x, matrix, bias)
            for x, matrix, bias in zip(inputs, matrices, biases, strict=True)
        ]
        batch = projected[0].shape[1]
        for k, added in ((1, self.bias_k), (2, self.bias_v)):
            if added is not None:
                projected[k] = torch.cat([projected[k], added.expand(1, batch, -1)])
            if self.add_zero_attn:
                zero = projected[k].new_zeros(1, batch, projected[k].shape[2])
                projected[k] = torch.cat([projected[k], zero])
        return [x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for x in projected]

    def _mask(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> Tensor | None:
        """Both masks of the module as one attn_mask; added keys are visible."""
        combined: Tensor | None = None
        batch, heads = query.shape[:2]
        for mask in (key_padding_mask, attn_mask):
            if mask is None:
                continue
            if mask is key_padding_mask:
                mask = mask[:, None, None, :]
            elif mask.ndim == 3:
                mask = mask.unflatten(0, (batch, heads))
            added = key.shape[2] - mask.shape[-1]
            mask = ~F.pad(mask, (0, added)) if mask.dtype == torch.bool else F.pad(mask, (0, added))
            combined = mask if combined is None else _both(combined, mask)
        return combined

    def _weights(
        self, query: Tensor, key: Tensor, arguments: dict[str, Any], average: bool
    ) -> Tensor:
        """The weights before dropout: attention with unit vectors as values."""
        arguments = arguments | {"dropout_p": 0.0}
        units = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        units = units.expand(*key.shape[:2], -1, -1)
        weights: Tensor = attention(query, key, units, impl="reference", **arguments)
        return weights.mean(dim=1) if average else weights


def _both(first: Tensor, second: Tensor) -> Tensor:
    """Two masks as one: both boolean, or both added, with -inf for hidden keys."""
    if first.dtype == second.dtype == torch.bool:
        return first & second
    dtype = second.dtype if first.dtype == torch.bool else first.dtype
    shape = torch.broadcast_shapes(first.shape, second.shape)
    added = torch.zeros(shape, dtype=dtype, device=first.device)
    for mask in (first, second):
        if mask.dtype == torch.bool:
            added = added.masked_fill(~mask, -torch.inf)
        else:
            added = added + mask.masked_fill(mask <= masked_below(mask.dtype), -torch.inf).to(dtype)
    return added
