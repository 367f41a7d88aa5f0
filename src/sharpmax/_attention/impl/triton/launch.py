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
from sharpmax._attention.impl.triton.table import FEW_ROWS, Tile, candidates, careful_tile
from sharpmax._attention.problem import masked_below

WIDEST = 256
"""The largest width of keys and values."""

_FAR = 1 << 30
"""A window that reaches this far has no bound: positions are 32-bit integers."""


_CHUNK = 32
"""How many numbers of rows in single precision are multiplied at a time."""

_SPLITS = 128
"""The most parts that keys are divided into; `attend` looks at so many at once."""

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

    def careful(self) -> Launch:
        """The launch that repeats some programs of this one of `attend` with care.

        It makes logits anew, also if they were kept: reading them takes registers.
        """
        tile = careful_tile(self.tile)
        ratio = self.tile.rows // tile.rows
        given = {"CAREFUL": True, "RATIO": ratio, "SCORES": "", "BITS": 0}
        return replace(self, tile=tile, constants=self.constants | given)

    def run(self) -> Launch:
        """Launch the kernel on the device of its tensors; return what ran, with its tile."""
        device = self.arguments["query"].device
        if device.type == "cuda":
            with torch.cuda.device(device):
                made = self._tuned() if tuning.wanted() else self
                made._start()
            return made
        # The interpreter computes with NumPy, which warns of infinities and NaN that are meant.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            self._start()
        return self

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
        plain = not (self.constants["MASKED"] or self.constants["CAPPED"])
        others = _candidates(
            self.kernel, query, self.arguments["key"], self.arguments.get("value"), plain
        )
        # A careful launch has to fit the one that it repeats.
        if len(others) == 1 or self.constants.get("CAREFUL"):
            return self
        import triton

        constants = {k: str(v) for k, v in self.constants.items()}
        sizes = [int(self.arguments[k]).bit_length() for k in ("queries", "keys")]
        kind = f"{self.kernel} {sorted(constants.items())} {sizes} {self.arguments['group']}"
        cache = tuning.cache_of(torch.cuda.get_device_name(query.device), triton.__version__)

        def seconds(tile: Tile) -> float:
            start = replace(self, tile=tile)._start
            try:
                return float(triton.testing.do_bench(start, warmup=5, rep=20)) / 1e3
            except (RuntimeError, triton.TritonError):  # too much for this device
                return math.inf

        capturing = torch.cuda.is_current_stream_capturing()
        found = tuning.best(kind, others, None if capturing else seconds, cache)
        return replace(self, tile=found)


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
    plain = mask is None and not settings.softcap
    tile = tile_of(kernel, query, key, value, plain, architecture)
    arguments: dict[str, Any] = {
        name: query if tensor is None else tensor for name, tensor in tensors.items()
    }
    if mask is not None and mask.dtype == torch.bool:
        arguments["mask"] = mask.view(torch.uint8)
    for name, tensor, axes in (
        ("q", query, "bhi"),
        ("k", key, "bhj"),
        ("v", value, "bhj"),
        ("m", mask, "bhij"),
    ):
        if name == "v" and "value" not in tensors:
            continue
        strides = (0,) * 4 if tensor is None else tensor.stride()
        arguments |= {f"{name}_{axis}": step for axis, step in zip(axes, strides, strict=False)}
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
    } | _products(query, architecture)
    if splits:
        arguments |= {"splits": splits, "apart": query.shape[0] * query.shape[1] * queries}
    if "value" in tensors:
        constants["VALUE_WIDTH"] = value_width = 1 if value is None else value.shape[3]
        constants["BLOCK_V"] = _padded(value_width)
    arguments |= {name: constants.pop(name) for name in list(constants) if name.islower()}
    if "scores" in tensors:
        arguments["score_bytes"] = score_bytes(constants["BITS"], keys, tile)
    if kernel == "attend":
        constants |= {"CAREFUL": False, "RATIO": 1}
    return Launch(kernel, arguments, constants, tile, over_keys)


def tile_of(
    kernel: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    plain: bool = True,
    architecture: str | None = None,
) -> Tile:
    """Look the default tile up in the table."""
    if architecture is None and interpreted():
        few = kernel in ("measure", "attend") and rows_per_head(query, key) <= FEW_ROWS
        return _INTERPRETED._replace(rows=FEW_ROWS) if few else _INTERPRETED
    return _candidates(kernel, query, key, value, plain, architecture)[0]


def _candidates(
    kernel: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    plain: bool,
    architecture: str | None = None,
) -> tuple[Tile, ...]:
    widest = max(key.shape[3], 0 if value is None else value.shape[3])
    known = architecture or architecture_of(query.device)
    rows, size = rows_per_head(query, key), query.element_size()
    return candidates(known, kernel, widest, rows, size, plain)


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous and begin at multiples of 16 bytes.

    Kernels read no other, and nearly all are like that. Others are copied, and padded with zeros if
    their width is no such multiple.
    """
    each, width = 16 // tensor.element_size(), tensor.shape[3]
    *steps, last = tensor.stride()
    odd = any(step % each for step, size in zip(steps, tensor.shape, strict=False) if size > 1)
    if not (odd or last != 1 or width % each or tensor.data_ptr() % 16):
        return tensor
    made = tensor.new_zeros(*tensor.shape[:3], _up(width, each))
    made[..., :width] = tensor
    return made


def rows_per_head(query: Tensor, key: Tensor) -> int:
    """How many rows share a key head."""
    return query.shape[2] * (query.shape[1] // max(key.shape[1], 1))


def score_bits(dtype: torch.dtype) -> int:
    """How many bits of a logit are kept for weights in this precision."""
    return {torch.bfloat16: 12, torch.float16: 24}.get(dtype, 32)


def score_bytes(bits: int, keys: int, tile: Tile) -> int:
    """The bytes that `tiles.keep` writes for one row."""
    blocks = -(-keys // tile.keys)
    lower = _up(blocks * tile.keys // 2, 16) if bits == 12 else 0
    return _up(4 * blocks, 16) + bits // 8 * _up(keys, 16) + lower


def splits_of(query: Tensor, key: Tensor, tile: Tile) -> int:
    """Into how many parts to divide the keys, so that a few rows occupy the whole device."""
    programs = -(-rows_per_head(query, key) // tile.rows) * key.shape[0] * key.shape[1]
    blocks = -(-key.shape[2] // tile.keys)
    return max(1, min(2 * processors(query.device) // max(programs, 1), blocks // 2, _SPLITS))


def negligible(keys: int) -> float:
    """The logarithm below which all weights of a row together are lost in rounding."""
    return -(25 * math.log(2.0) + math.log(max(keys, 1)))


def _products(query: Tensor, architecture: str | None) -> dict[str, Any]:
    """How kernels multiply: the dtype of operands, and what matters in single precision alone.

    NVIDIA's matrix units round single precision to 10 bits. Three products of upper and lower parts
    are within 2^-21 of an exact one. The parts of whole rows do not fit into registers, so that
    chunks of rows are multiplied. The matrix units of AMD are exact.
    """
    import triton.language as tl

    here = architecture is None and interpreted()
    if query.dtype == torch.float32:
        if not here and (architecture or architecture_of(query.device)) == "gfx942":
            return {"PRODUCT": tl.float32, "PRECISION": "ieee", "CHUNK": 0}
        precision = "ieee" if here else "tf32x3"
        return {"PRODUCT": tl.float32, "PRECISION": precision, "CHUNK": _CHUNK}
    # The interpreter has no products of bfloat16.
    half = tl.float16 if query.dtype == torch.float16 else tl.float32 if here else tl.bfloat16
    return {"PRODUCT": half, "PRECISION": "ieee", "CHUNK": 0}


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
