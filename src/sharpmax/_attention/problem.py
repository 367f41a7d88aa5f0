"""Check the arguments of attention and bring them into the form that implementations read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax._attention.settings import Alignment, SinkRole, check_heads, equal, resolve

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SMALLEST = {
    dtype: torch.finfo(torch.promote_types(dtype, torch.float32)).tiny for dtype in FLOATING
}
"""By the dtype of the query, the smallest normal number of its statistics."""


@dataclass(eq=False)
class Problem:
    """The tensors and numbers of one attention, with every default resolved.

    Nothing writes to it. It is not frozen, since that would make each call 2 microseconds longer.

    The logit of query i and key j is e = scale q.k, then softcap tanh(e / softcap), then + bias.
    A query at position p = i + offset sees the keys from p - left to p + right that `attn_mask`
    does not hide; -1 means no bound. Tensors have the layout [batch, heads, length, width].
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    attn_mask: Tensor | None
    """Boolean (True is visible) or floating (added); broadcast to [batch, heads, queries, keys]."""
    sink: Tensor | None
    scale: float
    softcap: float
    """0 for none."""
    left: int
    right: int
    offset: int
    sink_counted: bool
    dropout: float = 0.0

    @property
    def rows(self) -> tuple[int, int, int]:
        """Batch, query heads, queries."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries

    @property
    def group(self) -> int:
        """How many query heads share one key head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    @property
    def statistics_dtype(self) -> torch.dtype:
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def in_window(self) -> Tensor | None:
        """Return booleans [queries, keys] of what the window allows; None if it allows all."""
        if self.left < 0 and self.right < 0:
            return None
        device = self.query.device
        position = torch.arange(self.query.shape[2], device=device)[:, None] + self.offset
        key = torch.arange(self.key.shape[2], device=device)
        visible = torch.ones(
            self.query.shape[2], self.key.shape[2], dtype=torch.bool, device=device
        )
        if self.left >= 0:
            visible = visible & (key >= position - self.left)
        if self.right >= 0:
            visible = visible & (key <= position + self.right)
        return visible

    def rows_between(self, start: int, stop: int) -> Problem:
        """Return the problem of the queries from `start` to `stop` alone."""
        return replace(
            self,
            query=self.query[:, :, start:stop],
            attn_mask=None if self.attn_mask is None else self.attn_mask[:, :, start:stop],
            offset=self.offset + start,
        )


def masked_below(dtype: torch.dtype) -> float:
    """Return the threshold of additive masks: entries at or below it hide a key.

    It catches finfo.min and sums that contain it, besides -inf.
    """
    return 0.5 * torch.finfo(dtype).min


class Folded(NamedTuple):
    """Tensors as [batch, heads, length, width], and the leading axes that the caller expects."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Tensor | None
    leading: tuple[int, ...] | None
    """The axes before the heads; None if nothing was folded."""
    has_heads: bool = True

    def unfold(self, result: Tensor) -> Tensor:
        """Return a result [batch, heads, ...] with the leading axes of the caller."""
        if self.leading is None:
            return result
        heads = result.shape[1:] if self.has_heads else result.shape[2:]
        return result.reshape(*self.leading, *heads)


def fold(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    attn_mask: Tensor | None,
    *,
    enable_gqa: bool,
    maps: int = 1,
) -> Folded:
    """Bring tensors [..., heads, length, width] of two or more axes to four axes.

    Leading axes broadcast, as in PyTorch. So does the axis of heads, unless `enable_gqa` gives it
    another meaning. Under autocast, tensors of different dtypes take that of autocast.

    Raises:
        TypeError, ValueError: for tensors of fewer axes, or leading axes that do not broadcast.
    """
    if _is_folded(query, key, value, enable_gqa or maps > 1):
        return Folded(query, key, value, attn_mask, None)
    tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch tensor, got {type(tensor).__name__}")
        _check_layout(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(
                f"{name}: expected shape [..., heads, length, width], got {tuple(tensor.shape)}"
            )
    if key.dtype != query.dtype or (value is not None and value.dtype != query.dtype):
        device = query.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    given = list(tensors.values())
    share_heads = enable_gqa or maps > 1
    rank = max(x.ndim for x in given)
    given = [x if x.ndim > 2 else x[None] for x in given]
    try:
        leading = torch.broadcast_shapes(*(x.shape[:-3] for x in given))
    except RuntimeError:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors.values())
        raise ValueError(
            f"query, key, value: expected leading axes that broadcast, got shapes {shapes}"
        ) from None
    counts = {x.shape[-3] for x in given} - {1}
    if not share_heads and len(counts) == 1:
        (heads,) = counts
        given = [x.expand(*x.shape[:-3], heads, *x.shape[-2:]) for x in given]
    given = [_one_batch(x, leading) for x in given]
    if isinstance(attn_mask, Tensor) and len(leading) > 1 and attn_mask.ndim > 3:
        attn_mask = _one_batch(attn_mask, leading)
    return Folded(
        given[0],
        given[1],
        given[2] if value is not None else None,
        attn_mask,
        tuple(leading),
        has_heads=rank > 2,
    )


def _is_folded(query: Any, key: Any, value: Any, share_heads: bool) -> bool:
    """Whether nothing has to be broadcast, joined or cast; a decoding step is short, so quickly."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)):
        return False
    first, dtype = query.shape, query.dtype
    if len(first) != 4:
        return False
    batch, heads = first[0], first[1]
    for tensor in (key,) if value is None else (key, value):
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            return False
        shape = tensor.shape
        if len(shape) != 4 or shape[0] != batch or not (share_heads or shape[1] == heads):
            return False
    return True


def _one_batch(tensor: Tensor, leading: torch.Size) -> Tensor:
    """Broadcast the leading axes and join them into one."""
    tensor = tensor.expand(*leading, *tensor.shape[-3:])
    return tensor.flatten(0, -4) if leading else tensor[None]


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    alignment: Alignment,
    scale: float | None,
    softcap: float | None,
    sink: Tensor | None,
    sink_role: SinkRole,
    window: int | None,
    enable_gqa: bool,
    dropout: float,
    maps: int = 1,
) -> Problem:
    """Check every argument before any kernel runs, and bring them into one form.

    `fold` has brought the tensors to [batch, heads, length, width]. `maps` is the number of query
    and key heads per value head.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
    dtype, device, dense = query.dtype, query.device, torch.strided
    usual = dtype in FLOATING
    for name, tensor in tensors.items():
        # In one expression, since a decoding step is short.
        if not (
            usual and tensor.dtype is dtype and tensor.device == device and tensor.layout is dense
        ):
            _check_tensor(name, tensor, query)
    batch, heads, queries, width = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    for name, tensor in tensors.items():
        equal(f"{name}: batch size", tensor.shape[0], batch)
    equal("key: width", key.shape[3], width)
    check_heads(heads, key_heads, enable_gqa)
    if value is not None:
        if key_heads % maps:
            raise ValueError(f"key: expected heads in groups of {maps}, got {key_heads}")
        equal("value: heads", value.shape[1], key_heads // maps)
        equal("value: length", value.shape[2], keys)
    settings = resolve(
        queries,
        keys,
        width,
        SMALLEST[query.dtype],
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        sink_role=sink_role,
        window=window,
    )
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout_p: expected a number from 0 to 1, got {dropout!r}")
    if sink is not None:
        _check_sink(sink, query)
        # Once, so that gradients of the primitives add up before they are rounded.
        sink = sink.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    if attn_mask is not None:
        attn_mask = check_mask(attn_mask, query, (batch, heads, queries, keys))
    return Problem(query, key, value, attn_mask, sink, *settings, dropout=float(dropout))


def _check_layout(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")


def _check_tensor(name: str, tensor: Tensor, query: Tensor) -> None:
    _check_layout(name, tensor)
    if tensor.dtype not in FLOATING:
        expected = ", ".join(str(dtype) for dtype in FLOATING)
        raise TypeError(f"{name}: expected one of {expected}, got {tensor.dtype}")
    if tensor.dtype != query.dtype:
        raise TypeError(f"{name}: expected the dtype of query, {query.dtype}, got {tensor.dtype}")
    _check_device(name, tensor, query)


def _check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(
            f"{name}: expected the device of query, {query.device}, got {tensor.device}"
        )


def _check_sink(sink: Any, query: Tensor) -> None:
    if not isinstance(sink, Tensor) or not sink.is_floating_point():
        raise TypeError(f"sink: expected a floating tensor, got {getattr(sink, 'dtype', sink)!r}")
    _check_layout("sink", sink)
    if tuple(sink.shape) != (query.shape[1],):
        raise ValueError(
            f"sink: expected one logit per query head, shape ({query.shape[1]},), "
            f"got {tuple(sink.shape)}"
        )
    _check_device("sink", sink, query)


def check_mask(mask: Any, query: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Check a mask, and return it broadcast to [batch, heads, queries, keys]."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"attn_mask: expected a boolean or floating tensor, got {came}")
    if mask.is_floating_point() and mask.dtype not in FLOATING:
        raise TypeError(f"attn_mask: expected a boolean or floating tensor, got {mask.dtype}")
    _check_layout("attn_mask", mask)
    _check_device("attn_mask", mask, query)
    try:
        return mask.broadcast_to(shape)
    except RuntimeError:
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to {shape}, got {tuple(mask.shape)}"
        ) from None
