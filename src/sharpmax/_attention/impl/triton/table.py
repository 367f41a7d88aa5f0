"""The shapes of programs that the kernels are launched with, by architecture, kernel and width.

`python -m experiments.attention_speed compile` compiles every entry, without a device.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """The shape of a program: rows, keys at a time, warps, and stages of its pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


Candidates = tuple[Tile, ...]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
KERNELS = ("measure", "attend", "by_query", "by_key", "count_visible")

FEW_ROWS = 16
"""Up to so many rows per key head, as in decoding, programs have this many and their own tiles."""

_HALF: dict[tuple[str, str], tuple[Candidates, Candidates, Candidates]] = {
    ("sm_80", "measure"): (
        (Tile(128, 64, 8, 3),),
        (Tile(128, 64, 8, 3),),
        (Tile(64, 64, 8, 2),),
    ),
    ("sm_80", "attend"): (
        (Tile(128, 64, 8, 3), Tile(64, 64, 4, 3)),
        (Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
        (Tile(64, 32, 8, 2),),
    ),
    ("sm_80", "by_query"): ((Tile(64, 32, 8, 2),), (Tile(64, 64, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("sm_80", "by_key"): ((Tile(32, 32, 8, 2),), (Tile(32, 64, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("sm_90", "measure"): (
        (Tile(128, 64, 8, 3),),
        (Tile(128, 64, 8, 3),),
        (Tile(128, 64, 8, 2),),
    ),
    ("sm_90", "attend"): (
        (Tile(128, 32, 8, 3), Tile(128, 64, 8, 3)),
        (Tile(128, 32, 8, 3), Tile(64, 64, 8, 3)),
        (Tile(64, 32, 8, 2),),
    ),
    ("sm_90", "by_query"): ((Tile(64, 64, 8, 2),), (Tile(64, 32, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("sm_90", "by_key"): ((Tile(64, 64, 8, 2),), (Tile(32, 64, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("gfx942", "measure"): (
        (Tile(128, 64, 4, 2),),
        (Tile(128, 64, 4, 2),),
        (Tile(64, 32, 4, 1),),
    ),
    ("gfx942", "attend"): (
        (Tile(64, 64, 4, 2), Tile(128, 64, 4, 2)),
        (Tile(64, 64, 4, 1), Tile(64, 32, 4, 1)),
        (Tile(64, 32, 4, 1),),
    ),
    ("gfx942", "by_query"): ((Tile(64, 64, 4, 1),), (Tile(64, 32, 4, 1),), (Tile(32, 32, 4, 1),)),
    ("gfx942", "by_key"): ((Tile(64, 64, 4, 1),), (Tile(32, 64, 4, 1),), (Tile(32, 32, 4, 1),)),
}
"""In half precision, for widths up to 64, up to 128 and above: the default first, then what tuning
tries as well."""
_HALF |= {("sm_100", kernel): _HALF["sm_90", kernel] for kernel in KERNELS[:4]}
# With 64 keys at a time, this one spills.
_HALF["sm_100", "attend"] = ((Tile(128, 32, 8, 3),), *_HALF["sm_90", "attend"][1:])

_SINGLE: dict[str, tuple[Tile, Tile, Tile]] = {
    "measure": (Tile(64, 32, 8, 1), Tile(64, 32, 8, 1), Tile(64, 32, 8, 1)),
    "attend": (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 16, 8, 1)),
    "by_query": (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 16, 8, 1)),
    "by_key": (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(16, 32, 8, 1)),
}
"""In single precision, with 8 warps on NVIDIA and 4 on AMD."""

_COUNT = Tile(64, 32, 8, 1)


def candidates(
    architecture: str, kernel: str, width: int, rows: int, bytes_each: int, plain: bool = True
) -> Candidates:
    """Return the tiles for a kernel: the default, then what tuning tries as well.

    Args:
        architecture: one of `ARCHITECTURES`.
        kernel: one of `KERNELS`.
        width: the larger of the widths of keys and values.
        rows: rows per key head.
        bytes_each: size of a number of query and key.
        plain: whether there is neither a mask nor a soft cap, which need registers.
    """
    if kernel == "count_visible":
        return (_COUNT,)
    on_amd, single = architecture.startswith("gfx"), bytes_each == 4
    entry = 0 if width <= 64 else 1 if width <= 128 else 2
    if kernel in ("measure", "attend") and rows <= FEW_ROWS:
        # All have as many keys: one kernel keeps logits in blocks of that size for another.
        warps = 8 if entry == 2 and not on_amd else 4
        if single:
            return (Tile(FEW_ROWS, 32, warps, 1),)
        few = Tile(FEW_ROWS, 64, warps, 1 if on_amd or entry == 2 else 3)
        return (few, few._replace(warps=2)) if on_amd else (few,)
    if single:
        tile = _SINGLE[kernel][entry]
        found: Candidates = (tile._replace(warps=4) if on_amd else tile,)
    else:
        found = _HALF[architecture, kernel][entry]
    if plain or kernel == "measure":
        return found
    tile = found[0]
    if kernel == "by_key":
        return (tile._replace(rows=max(tile.rows // 2, 16)),)
    # Of 16 keys, attend at width 64 spills with a mask.
    least = 32 if kernel == "attend" and not single and entry == 0 else 16
    return (tile._replace(keys=max(tile.keys // 2, least)),)


def careful_tile(tile: Tile) -> Tile:
    """Return the tile that repeats some rows of a launch with care: small, since it is rare."""
    return Tile(16, 16, tile.warps, 1)
