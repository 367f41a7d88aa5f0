"""Choose tiles for the kernels, lay out their arguments, and launch them."""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax._attention.impl.triton import tuning
from sharpmax._attention.impl.triton.table import FEW_ROWS, Tile, candidates
from sharpmax._attention.problem import masked_below

WIDEST = 256
"""The largest width of keys and values."""

_FAR = 1 << 30
"""A window that reaches this far has no bound: positions are 32-bit integers."""


_INTERPRETED = Tile(64, 64, 1, 1)


class Settings(NamedTuple):
    """The numbers of a problem, as `sharpmax._attention.problem.Problem` has them."""

    scale: float
    softcap: float
    left: int
    right: int
    offset: int


@dataclass
class Launch:
    """A kernel with all its arguments: it can run, or be compiled without a device."""

    kernel: str
    arguments: dict[str, Any]
    constants: dict[str, Any]
    tile: Tile
    over_keys: bool = False
    """Whether programs divide the keys, rather than the rows."""

    @property
    def grid(self) -> tuple[int, int]:
        """How many programs there are: blocks of all key heads, and splits."""
        query, key = self.arguments["query"], self.arguments["key"]
        batch, heads, keys, _ = key.shape
        rows = rows_per_head(query, key)
        blocks = -(-keys // self.tile.keys) if self.over_keys else -(-rows // self.tile.rows)
        return blocks * batch * heads, self.arguments.get("splits", 1)

    def run(self) -> None:
        """Launch the kernel on the device of its tensors."""
        device = self.arguments["query"].device
        if device.type == "cuda":
            with torch.cuda.device(device):
                (self._tuned() if tuning.wanted() else self)._start()
        else:
            # The interpreter computes with NumPy, which warns of infinities and NaN that are meant.
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self._start()

    def _start(self) -> None:
        function(self.kernel)[self.grid](
            **self.arguments,
            **self.constants,
            BLOCK_M=self.tile.rows,
            BLOCK_N=self.tile.keys,
            num_warps=self.tile.warps,
            num_stages=self.tile.stages,
        )

    def _tuned(self) -> Launch:
        """This launch with the fastest tile; the default where nothing can be timed."""
        query = self.arguments["query"]
        others = _candidates(self.kernel, query, self.arguments["key"], self.arguments.get("value"))
        if len(others) == 1:
            return self
        import triton

        # The second launch of `attend` has to divide the rows as the first did.
        constants = {k: str(v) for k, v in self.constants.items() if k != "CAREFUL"}
        sizes = [int(self.arguments[k]).bit_length() for k in ("queries", "keys")]
        kind = f"{self.kernel} {sorted(constants.items())} {sizes} {self.arguments['group']}"
        cache = tuning.cache_of(torch.cuda.get_device_name(query.device), triton.__version__)
        if torch.cuda.is_current_stream_capturing():
            return self

        def seconds(tile: Tile) -> float:
            launched = replace(self, tile=tile)
            return float(triton.testing.do_bench(launched._start, warmup=5, rep=20)) / 1e3

        return replace(self, tile=tuning.best(kind, others, seconds, cache))


def function(kernel: str) -> Any:
    """Return a kernel by name. Triton is imported here, when the first one is used."""
    module = "backward" if kernel in ("by_query", "by_key") else "forward"
    return getattr(importlib.import_module(f"sharpmax._attention.impl.triton.{module}"), kernel)


def launch(
    kernel: str,
    tensors: dict[str, Tensor | None],
    settings: Settings,
    *,
    over_keys: bool = False,
    splits: int = 0,
    architecture: str | None = None,
    **constants: Any,
) -> Launch:
    """Lay out the arguments of a kernel.

    Args:
        kernel: its name.
        tensors: its pointers, in order. None, where the kernel reads nothing, becomes the query.
        settings: scale, soft cap and window.
        over_keys: whether programs divide the keys, rather than the rows.
        splits: for kernels that divide the keys of a row as well: into how many parts.
        architecture: compile for this one, rather than for that of the device.
        constants: numbers and constants that only this kernel has.
    """
    query, key, value, mask = (tensors.get(k) for k in ("query", "key", "value", "mask"))
    assert query is not None
    assert key is not None
    _, heads, keys, width = key.shape
    group, queries = query.shape[1] // max(heads, 1), query.shape[2]
    tile = tile_of(kernel, query, key, value, architecture)
    arguments: dict[str, Any] = {
        name: query if tensor is None else tensor for name, tensor in tensors.items()
    }
    if mask is not None and mask.dtype == torch.bool:
        arguments["mask"] = mask.view(torch.uint8)
    for name, tensor, axes in (
        ("q", query, "bhid"),
        ("k", key, "bhjd"),
        ("v", value, "bhjd"),
        ("m", mask, "bhij"),
    ):
        if name == "v" and "value" not in tensors:
            continue
        strides = (0,) * 4 if tensor is None else tensor.stride()
        arguments |= {f"{name}_{axis}": step for axis, step in zip(axes, strides, strict=True)}
    bounded = settings.left >= 0 or settings.right >= 0
    left, right = (
        _FAR if bound < 0 else min(bound, _FAR) for bound in (settings.left, settings.right)
    )
    arguments |= {
        "heads": heads,
        "group": group,
        "queries": queries,
        "keys": keys,
        "scale": settings.scale,
        "softcap": settings.softcap,
        "hidden": _hidden(mask),
        "left": left,
        "right": right,
        "offset": settings.offset,
    }
    constants |= {
        "MASKED": _kind(mask),
        "CAPPED": settings.softcap != 0.0,
        "WINDOWED": bounded,
        "WIDTH": width,
        "BLOCK_D": _padded(width),
        "PRODUCT": product_dtype(query.dtype),
    }
    if splits:
        arguments |= {"splits": splits, "apart": query.shape[0] * query.shape[1] * queries}
    if "value" in tensors:
        constants["VALUE_WIDTH"] = value_width = 1 if value is None else value.shape[3]
        constants["BLOCK_V"] = _padded(value_width)
    arguments |= {name: constants.pop(name) for name in list(constants) if name.islower()}
    if "scores" in tensors:
        constants["PACKED"] = query.element_size() == 2
        arguments["score_bytes"] = score_bytes(query, keys, tile)
    return Launch(kernel, arguments, constants, tile, over_keys)


def tile_of(
    kernel: str, query: Tensor, key: Tensor, value: Tensor | None, architecture: str | None = None
) -> Tile:
    """Look the default tile up in the table."""
    if architecture is None and interpreted():
        few = kernel in ("measure", "attend") and rows_per_head(query, key) <= FEW_ROWS
        return _INTERPRETED._replace(rows=FEW_ROWS) if few else _INTERPRETED
    return _candidates(kernel, query, key, value, architecture)[0]


def _candidates(
    kernel: str, query: Tensor, key: Tensor, value: Tensor | None, architecture: str | None = None
) -> tuple[Tile, ...]:
    widest = max(key.shape[3], 0 if value is None else value.shape[3])
    known = architecture or architecture_of(query.device)
    return candidates(known, kernel, widest, rows_per_head(query, key), query.element_size())


def rows_per_head(query: Tensor, key: Tensor) -> int:
    """How many rows share a key head."""
    return query.shape[2] * (query.shape[1] // max(key.shape[1], 1))


def score_bytes(query: Tensor, keys: int, tile: Tile) -> int:
    """The bytes that the logits of one row take while they are kept, as `tiles.keep` writes them.

    Three bytes per logit in half precision and four in single, and four per block of keys.
    """
    each = 3 if query.element_size() == 2 else 4
    return each * _up(keys, 16) + _up(4 * -(-keys // tile.keys), 16)


def splits_of(query: Tensor, key: Tensor, tile: Tile) -> int:
    """Into how many parts to divide the keys, so that a few rows occupy the whole device."""
    programs = -(-rows_per_head(query, key) // tile.rows) * key.shape[0] * key.shape[1]
    blocks = -(-key.shape[2] // tile.keys)
    return max(1, min(2 * processors(query.device) // max(programs, 1), blocks // 2, 128))


def negligible(keys: int) -> float:
    """The logarithm below which all weights of a row together are lost in rounding."""
    return -(25 * math.log(2.0) + math.log(max(keys, 1)))


def product_dtype(dtype: torch.dtype) -> Any:
    """The dtype of the operands of products. The interpreter has no products of bfloat16."""
    import triton.language as tl

    if dtype == torch.bfloat16 and interpreted():
        dtype = torch.float32
    return {
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }[dtype]


@functools.cache
def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU (TRITON_INTERPRET=1 at import)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


@functools.cache
def architecture_of(device: torch.device) -> str:
    """The entry of the table for a device: its own, or one that needs little shared memory."""
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {9: "sm_90", 10: "sm_100"}.get(major, "sm_80")


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs a device runs at a time; a few if it is no GPU."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _padded(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length()) if width else 16


def _kind(mask: Tensor | None) -> str:
    if mask is None:
        return ""
    return "boolean" if mask.dtype == torch.bool else "additive"


def _hidden(mask: Tensor | None) -> float:
    """The threshold of an additive mask, as a number of single precision."""
    if mask is None or not mask.is_floating_point():
        return 0.0
    return masked_below(mask.dtype) if mask.dtype != torch.float64 else -math.inf
