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
KERNELS = ("measure", "attend", "by_query", "by_key")

FEW_ROWS = 16
"""Up to so many rows per key head, as in decoding, programs have this many and their own tiles."""

_TILES: dict[tuple[str, str], tuple[Candidates, Candidates, Candidates]] = {
    ("sm_80", "measure"): (
        (Tile(128, 64, 8, 3),),
        (Tile(128, 64, 8, 3), Tile(64, 64, 4, 3)),
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
        (Tile(128, 32, 8, 3),),
        (Tile(64, 32, 8, 2),),
    ),
    ("sm_90", "by_query"): ((Tile(64, 64, 8, 2),), (Tile(64, 32, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("sm_90", "by_key"): ((Tile(64, 64, 8, 2),), (Tile(32, 64, 8, 2),), (Tile(32, 32, 8, 1),)),
    ("gfx942", "measure"): (
        (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2)),
        (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2)),
        (Tile(64, 32, 4, 1),),
    ),
    ("gfx942", "attend"): (
        (Tile(64, 64, 4, 2), Tile(128, 64, 4, 2)),
        (Tile(64, 64, 4, 1),),
        (Tile(64, 32, 4, 1),),
    ),
    ("gfx942", "by_query"): ((Tile(64, 64, 4, 1),), (Tile(64, 32, 4, 1),), (Tile(32, 32, 4, 1),)),
    ("gfx942", "by_key"): ((Tile(64, 64, 4, 1),), (Tile(32, 64, 4, 1),), (Tile(32, 32, 4, 1),)),
}
"""For widths up to 64, up to 128 and above: the default first, then what tuning tries as well."""
_TILES |= {("sm_100", kernel): _TILES["sm_90", kernel] for kernel in KERNELS}
# With 64 keys at a time, this one spills.
_TILES["sm_100", "attend"] = ((Tile(128, 32, 8, 3),), *_TILES["sm_90", "attend"][1:])

_FEW: dict[str, Candidates] = {
    "sm_80": (Tile(FEW_ROWS, 64, 4, 3),),
    "sm_90": (Tile(FEW_ROWS, 64, 4, 3),),
    "sm_100": (Tile(FEW_ROWS, 64, 4, 3),),
    "gfx942": (Tile(FEW_ROWS, 64, 4, 1), Tile(FEW_ROWS, 64, 2, 1)),
}
"""All have as many keys: logits are kept in blocks of that size by one kernel for another."""


def candidates(
    architecture: str, kernel: str, width: int, rows: int, bytes_each: int
) -> Candidates:
    """Return the tiles for a kernel: the default, then what tuning tries as well.

    Args:
        architecture: one of `ARCHITECTURES`.
        kernel: its name.
        width: the larger of the widths of keys and values.
        rows: rows per key head.
        bytes_each: size of a number of query and key.
    """
    kernel = "measure" if kernel == "count_visible" else kernel
    entry = 0 if width <= 64 else 1 if width <= 128 else 2
    if kernel in ("measure", "attend") and rows <= FEW_ROWS:
        few = _FEW[architecture]
        return tuple(tile._replace(stages=max(tile.stages - entry, 1)) for tile in few)
    found = _TILES[architecture, kernel][entry]
    if bytes_each == 4:  # twice the bytes, and no room for them in shared memory
        first = found[0]
        return (Tile(max(first.rows // 4, 16), max(first.keys // 2, 16), first.warps, 1),)
    return found
