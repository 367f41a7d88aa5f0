"""Choose tiles for the kernels, lay out their arguments, and launch them."""

from __future__ import annotations

import functools
import importlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax._attention.problem import masked_below

WIDEST = 256
"""The largest width of keys and values."""

_FAR = 1 << 30
"""A window that reaches this far has no bound: positions are 32-bit integers."""


class Tile(NamedTuple):
    """The shape of a program: rows, keys at a time, warps, and stages of its pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


TILES: dict[tuple[str, str], tuple[Tile, Tile, Tile]] = {
    ("sm_80", "measure"): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(64, 64, 8, 2)),
    ("sm_80", "attend"): (Tile(128, 64, 8, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
    ("sm_80", "by_query"): (Tile(64, 32, 8, 2), Tile(64, 64, 8, 2), Tile(32, 32, 8, 1)),
    ("sm_80", "by_key"): (Tile(32, 64, 8, 2), Tile(32, 64, 8, 2), Tile(32, 32, 8, 1)),
    ("sm_90", "measure"): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 64, 8, 2)),
    ("sm_90", "attend"): (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2)),
    ("sm_90", "by_query"): (Tile(128, 64, 8, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 1)),
    ("sm_90", "by_key"): (Tile(64, 64, 8, 2), Tile(32, 64, 8, 2), Tile(32, 32, 8, 1)),
    ("sm_100", "measure"): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 64, 8, 2)),
    ("sm_100", "attend"): (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2)),
    ("sm_100", "by_query"): (Tile(128, 64, 8, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 1)),
    ("sm_100", "by_key"): (Tile(64, 64, 8, 2), Tile(32, 64, 8, 2), Tile(32, 32, 8, 1)),
    ("gfx942", "measure"): (Tile(128, 64, 4, 2), Tile(128, 64, 4, 2), Tile(64, 32, 4, 1)),
    ("gfx942", "attend"): (Tile(128, 64, 4, 2), Tile(128, 64, 4, 1), Tile(64, 32, 4, 1)),
    ("gfx942", "by_query"): (Tile(64, 64, 4, 1), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1)),
    ("gfx942", "by_key"): (Tile(64, 64, 4, 1), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1)),
}
"""By architecture and kernel, for widths up to 64, up to 128 and above."""

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
    """A kernel with all its arguments; `compilation` also compiles it without a device."""

    kernel: str
    grid: tuple[int, int]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    tile: Tile

    def run(self) -> None:
        """Launch the kernel on the device of its tensors."""
        device = self.arguments["query"].device
        # The interpreter computes with NumPy, which warns of infinities that are meant.
        where = torch.cuda.device(device) if device.type == "cuda" else np.errstate(all="ignore")
        with where:
            function(self.kernel)[self.grid](
                **self.arguments,
                **self.constants,
                num_warps=self.tile.warps,
                num_stages=self.tile.stages,
            )


def function(kernel: str) -> Any:
    """Return a kernel by name. Triton is imported here, when the first one is used."""
    module = "forward" if kernel in ("measure", "attend") else "backward"
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
    batch, heads, keys, width = key.shape
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
        "BLOCK_M": tile.rows,
        "BLOCK_N": tile.keys,
        "BLOCK_D": _padded(width),
        "PRODUCT": product_dtype(query.dtype),
    }
    if splits:
        arguments |= {"splits": splits, "apart": query.shape[0] * query.shape[1] * queries}
    if "value" in tensors:
        constants["VALUE_WIDTH"] = value_width = 1 if value is None else value.shape[3]
        constants["BLOCK_V"] = _padded(value_width)
    arguments |= {name: constants.pop(name) for name in list(constants) if name.islower()}
    blocks = -(-keys // tile.keys) if over_keys else -(-queries * group // tile.rows)
    return Launch(kernel, (blocks * batch * heads, max(splits, 1)), arguments, constants, tile)


def tile_of(
    kernel: str, query: Tensor, key: Tensor, value: Tensor | None, architecture: str | None = None
) -> Tile:
    """Look a tile up in the table; few rows, such as those of decoding, take a small one."""
    if architecture is None and interpreted():
        tile = _INTERPRETED
    else:
        known = architecture or architecture_of(query.device)
        widest = max(key.shape[3], 0 if value is None else value.shape[3])
        entry = 0 if widest <= 64 else 1 if widest <= 128 else 2
        tile = TILES[known, kernel][entry]
        if query.dtype == torch.float32:  # twice the bytes, and no room for them in shared memory
            tile = Tile(max(tile.rows // 4, 16), max(tile.keys // 2, 16), tile.warps, 1)
    rows = query.shape[2] * (query.shape[1] // max(key.shape[1], 1))
    if kernel in ("measure", "attend") and rows <= 16:
        tile = tile._replace(rows=16, warps=min(tile.warps, 4))
    return tile


def splits_of(query: Tensor, key: Tensor, tile: Tile) -> int:
    """Into how many parts to divide the keys, so that a few rows occupy the whole device."""
    rows = query.shape[2] * (query.shape[1] // max(key.shape[1], 1))
    programs = -(-rows // tile.rows) * key.shape[0] * key.shape[1]
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
