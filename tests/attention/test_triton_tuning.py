"""The tiles that tuning finds, and the cache that it keeps them in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharpmax._attention.impl.triton import tuning
from sharpmax._attention.impl.triton.table import ARCHITECTURES, KERNELS, Tile, candidates

SLOW, FAST, LARGE = Tile(64, 64, 4, 2), Tile(128, 32, 8, 2), Tile(256, 128, 8, 3)


def seconds(tile: Tile) -> float:
    if tile == LARGE:
        raise RuntimeError("out of resource: shared memory")
    return {SLOW: 2.0, FAST: 1.0}[tile]


def never(tile: Tile) -> float:
    raise AssertionError(f"{tile} was timed again")


@pytest.fixture(autouse=True)
def _forget() -> None:
    tuning._known.cache_clear()


def test_the_fastest_that_fits_is_taken_and_found_again(tmp_path: Path) -> None:
    cache = tmp_path / "tiles" / "device.json"
    assert tuning.best("attend", (SLOW, FAST, LARGE), seconds, cache) == FAST
    assert tuning.best("attend", (SLOW, FAST, LARGE), never, cache) == FAST
    tuning._known.cache_clear()  # as in another process
    assert tuning.best("attend", (SLOW, FAST, LARGE), never, cache) == FAST
    with pytest.raises(AssertionError, match="timed again"):
        tuning.best("attend of another kind", (SLOW, FAST), never, cache)


def test_a_tile_that_left_the_table_is_not_taken(tmp_path: Path) -> None:
    cache = tmp_path / "device.json"
    assert tuning.best("attend", (SLOW, FAST), seconds, cache) == FAST
    assert tuning.best("attend", (SLOW,), seconds, cache) == SLOW


@pytest.mark.parametrize("content", ["[1, 2]", "no JSON", json.dumps({"attend": "x"})])
def test_a_damaged_cache_is_made_anew(content: str, tmp_path: Path) -> None:
    cache = tmp_path / "device.json"
    cache.write_text(content, encoding="utf-8")
    assert tuning.best("attend", (SLOW, FAST), seconds, cache) == FAST
    assert json.loads(cache.read_text(encoding="utf-8"))["attend"] == list(FAST)


def test_where_nothing_fits_and_nothing_can_be_written_the_default_is_taken(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    assert tuning.best("attend", (LARGE, LARGE), seconds, blocked / "device.json") == LARGE


def test_files_are_told_apart_by_device_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = {tuning.cache_of(*each) for each in [("A100", "3.4"), ("A100", "3.5"), ("H100", "3.4")]}
    assert len(names) == 3


def test_every_launch_has_a_default_and_the_table_is_small() -> None:
    for architecture in ARCHITECTURES:
        found = [
            candidates(architecture, kernel, width, rows, size, plain)
            for kernel in KERNELS
            for width in (16, 64, 72, 128, 192, 256)
            for rows in (4, 4096)
            for size in (2, 4)
            for plain in (True, False)
        ]
        assert all(1 <= len(tiles) <= 2 for tiles in found)
        # Logits are kept in blocks of as many keys as the kernel that reads them takes.
        for size in (2, 4):
            keys = {
                tile.keys
                for kernel in ("measure", "attend")
                for width in (64, 128, 256)
                for plain in (True, False)
                for tile in candidates(architecture, kernel, width, 4, size, plain)
            }
            assert len(keys) == 1
