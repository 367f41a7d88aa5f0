"""What the Triton kernels are compiled for: the table of tiles, dtypes and variants."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import torch

from sharpmax._attention.impl.triton.launch import Launch, Settings, launch, score_bits
from sharpmax._attention.impl.triton.table import (
    ARCHITECTURES,
    KERNELS,
    Tile,
    candidates,
    careful_tile,
)

__all__ = ["WITHOUT_PRODUCTS", "Configuration", "configurations", "laid_out"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
WIDTHS = (64, 128, 256)
TILED_WIDTHS = {"float32": (128, 256), "float16": (128,)}
"""In float32 width 64 has the tiles of width 128; float16 has those of bfloat16."""
OTHER_WIDTHS = {72: 72, 192: 128}
"""Widths that are no power of two, one of them no multiple of 16, and the widths of the values."""
LENGTH = 4096

COMMON: dict[str, tuple[str, ...]] = {
    "measure": ("causal", "decode"),
    "attend": ("causal", "careful", "decode", "careful decode"),
    "by_query": ("causal",),
    "by_key": ("causal",),
    "count_visible": ("causal",),
}
"""What each kernel is compiled for at every width and dtype. Every call of `attend` launches it
with care as well. Sinks are no part of the kernels."""

RARE: dict[str, tuple[str, ...]] = {
    "measure": (
        *("boolean mask", "bias and softcap", "tempered"),
        *("boolean mask decode", "bias and softcap decode", "tempered decode"),
    ),
    "attend": (
        *("boolean mask", "bias and softcap", "one pass"),
        *("boolean mask decode", "bias and softcap decode", "one pass decode"),
    ),
    "by_query": ("boolean mask", "bias and softcap", "statistics"),
    "by_key": ("boolean mask", "bias and softcap", "statistics"),
    "count_visible": ("boolean mask", "bias and softcap"),
}
"""What each kernel is compiled for as well at three widths in bfloat16, and some of it in float32
at width 128."""

RARE_IN_SINGLE = ("bias and softcap", "statistics")

WITHOUT_PRODUCTS = ("tempered decode",)
"""It reads the logits that an earlier launch kept."""


@dataclass(frozen=True)
class Configuration:
    """One kernel as it is compiled: an entry of the table of tiles, a dtype and a variant."""

    architecture: str
    kernel: str
    width: int
    dtype: str
    variant: str
    tile: Tile

    @property
    def name(self) -> str:
        tile = "x".join(map(str, self.tile))
        parts = (self.architecture, self.kernel, self.width, self.dtype, self.variant, tile)
        return ", ".join(map(str, parts))


def configurations() -> list[Configuration]:
    """Return all of them, those that most users meet first.

    In bfloat16, every tile of the table for causal attention and decoding at three widths; the
    default tile at two other widths, and for other variants. In float32 the default tile at two
    widths, in float16 at one.
    """
    found = []
    for (dtype, number), width, architecture, kernel in itertools.product(
        DTYPES.items(), WIDTHS + tuple(OTHER_WIDTHS), ARCHITECTURES, KERNELS
    ):
        half = dtype == "bfloat16"
        if not half and width not in TILED_WIDTHS[dtype]:
            continue
        rare = RARE[kernel] if half and width in WIDTHS else ()
        if dtype == "float32" and width == 128:
            rare = tuple(each for each in RARE[kernel] if each in RARE_IN_SINGLE)
        for variant in COMMON[kernel] + rare:
            plain = variant not in ("boolean mask", "bias and softcap")
            tiles = candidates(
                architecture, kernel, width, 4 * _queries(variant), number.itemsize, plain
            )
            if variant.startswith("careful"):
                tiles = tuple(dict.fromkeys(map(careful_tile, tiles)))
            if not half or width in OTHER_WIDTHS or variant in rare:
                tiles = tiles[:1]
            found += [
                Configuration(architecture, kernel, width, dtype, variant, tile) for tile in tiles
            ]
    return sorted(
        found,
        key=lambda each: (
            each.variant not in COMMON[each.kernel],
            each.dtype != "bfloat16",
            each.width not in (64, 128),
        ),
    )


def _queries(variant: str) -> int:
    return 1 if variant.endswith("decode") else LENGTH


def laid_out(configuration: Configuration) -> Launch:
    """Return the launch of grouped attention, on tensors without memory."""
    dtype, kernel, variant = (
        DTYPES[configuration.dtype],
        configuration.kernel,
        configuration.variant,
    )
    width, queries = configuration.width, _queries(variant)

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows = empty(1, 8, queries, dtype=torch.float32)
    value_width = OTHER_WIDTHS.get(width, width)
    query, key = empty(1, 8, queries, width), empty(1, 2, LENGTH, width)
    value, row = empty(1, 2, LENGTH, value_width), empty(1, 8, queries, value_width)
    biased = variant.startswith("bias")
    settings = Settings(0.125, 30.0 if biased else 0.0, -1, 0, LENGTH - queries)
    mask = None
    if biased or variant.startswith("boolean"):
        mask = empty(1, 8, queries, LENGTH, dtype=dtype if biased else torch.bool)
    given: dict[str, Any] = {"query": query, "key": key, "mask": mask}
    options: dict[str, Any] = {"architecture": configuration.architecture}
    if kernel != "count_visible":
        given["beta"] = rows
    if kernel in ("measure", "attend"):
        given["scores"] = empty(1, dtype=torch.uint8)
        options["splits"] = 8 if queries == 1 else 1
    if kernel == "measure":
        given |= dict.fromkeys(("maximum", "mass", "moment", "square", "ties"), rows)
        given["count"] = empty(1, 8, queries, dtype=torch.int32)
        options |= {"TEMPERED": "tempered" in variant, "TIED": queries > 1}
        bits = max(score_bits(dtype), 24 if variant == "tempered decode" else 0)
        scores = "read" if variant == "tempered decode" else "write"
        options |= {"SCORES": scores, "BITS": bits} if queries == 1 else {"SCORES": "", "BITS": 0}
    elif kernel == "attend":
        output = empty(8, 8, 1, value_width, dtype=torch.float32) if queries == 1 else row
        given |= {"value": value, "output": output, "odd": empty(LENGTH, dtype=torch.int32)}
        given |= dict.fromkeys(("known", "maximum", "relative"), rows)
        once = variant.startswith("one pass")
        held = queries == 1 and not once
        options |= {
            "negligible": -26.0,
            "KNOWN": not once,
            "SCORES": "read" if held else "",
            "BITS": score_bits(dtype) if held else 0,
        }
    elif kernel == "count_visible":
        given["unsure"] = given["count"] = empty(1, 8, queries, dtype=torch.int32)
    else:
        values = variant != "statistics"
        given |= {"value": value if values else None, "gradient": row if values else None}
        given |= dict.fromkeys(("maximum", "one", "two", "three"), rows)
        if kernel == "by_query":
            given |= {"of_query": query, "of_beta": rows, "of_mask": mask if biased else rows}
            options["BIAS"] = biased
        else:
            given |= {"of_key": key, "of_value": value}
            options["over_keys"] = True
        options["VALUES"] = values
    made = launch(kernel, given, settings, **options)
    if variant.startswith("careful"):
        made = made.careful()
    return dataclasses.replace(made, tile=configuration.tile)
