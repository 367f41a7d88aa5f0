"""Choose tiles by timing them on the device, once per kind of launch, if the user asks for it.

Set the environment variable SHARPMAX_AUTOTUNE=1. What was found is kept in the user's cache, by
device, version of Triton and kind of launch, and is used whenever the variable is set.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sharpmax._attention.impl.triton.table import Tile
from sharpmax._files import cache_folder, read_json, write_json


def wanted() -> bool:
    """Whether the user asked for tuning."""
    return os.environ.get("SHARPMAX_AUTOTUNE", "0") not in ("", "0")


def best(
    kind: str,
    candidates: Sequence[Tile],
    seconds: Callable[[Tile], float] | None,
    cache: Path | None,
) -> Tile:
    """Return the fastest of the candidates, timed now or at an earlier call.

    Args:
        kind: what tells launches apart whose best tiles may differ.
        candidates: tiles, the default first.
        seconds: times a launch with a tile; infinity if the device cannot run it. None
            if nothing can be timed now: then the default is returned, unless there is a result.
        cache: the file of earlier results, or None to keep them in this process alone.
    """
    known = _known(cache)
    for tile in candidates:
        if list(tile) == known.get(kind):
            return tile
    if seconds is None:
        return candidates[0]
    found = min(candidates, key=seconds)
    known[kind] = list(found)
    if cache is not None:
        try:
            write_json(cache, known)
        except OSError:
            return found  # a cache that cannot be written to costs time, no more
    return found


def cache_of(device: str, version: str) -> Path | None:
    """Return the file for a device and a version of Triton; None if there is no home."""
    name = "".join(c if c.isalnum() else "-" for c in f"{device}-{version}")
    try:
        return cache_folder() / "tiles" / f"{name}.json"
    except RuntimeError:
        return None


@functools.cache
def _known(cache: Path | None) -> dict[str, list[int]]:
    """Read earlier results; none if the file is not there or not ours."""
    try:
        content = read_json(cache) if cache is not None and cache.exists() else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
