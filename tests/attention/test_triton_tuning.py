"""The tiles that tuning finds, and the cache that it keeps them in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sharpmax
from experiments.attention_speed.roofline import DEVICES, planned
from sharpmax._attention.impl.triton import operators, tuning
from sharpmax._attention.impl.triton.launch import Launch
from sharpmax._attention.impl.triton.table import ARCHITECTURES, KERNELS, Tile, candidates
from sharpmax.policies import Exponential
from triton_interpreter import missing

needs_triton = pytest.mark.skipif(missing() is not None, reason=missing() or "")

SLOW, FAST, LARGE = Tile(64, 64, 4, 2), Tile(128, 32, 8, 2), Tile(256, 128, 8, 3)


def seconds(tile: Tile) -> float:
    return {SLOW: 2.0, FAST: 1.0, LARGE: math.inf}[tile]


def never(tile: Tile) -> float:
    raise AssertionError(f"{tile} was timed again")


@pytest.fixture(autouse=True)
def _forget() -> None:
    tuning._known.cache_clear()


def test_the_fastest_that_fits_is_taken_and_found_again(tmp_path: Path) -> None:
    cache = tmp_path / "tiles" / "device.json"
    assert tuning.best("attend", (LARGE, SLOW, FAST), None, cache) == LARGE
    assert tuning.best("attend", (LARGE, SLOW, FAST), seconds, cache) == FAST
    assert tuning.best("attend", (LARGE, SLOW, FAST), never, cache) == FAST
    assert tuning.best("attend", (LARGE, SLOW, FAST), None, cache) == FAST
    tuning._known.cache_clear()  # as in another process
    assert tuning.best("attend", (LARGE, SLOW, FAST), never, cache) == FAST
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


@needs_triton
def test_a_launch_takes_the_fastest_tile_that_the_device_can_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import triton

    def bench(start: Any, **_: Any) -> float:
        if start.__self__.tile.rows > 64:
            raise triton.OutOfResources(200_000, 101_376, "shared memory")
        return 1.0

    monkeypatch.setattr(triton.testing, "do_bench", bench)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A10")
    capturing = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    query = torch.empty(1, 8, 200, 64, dtype=torch.bfloat16, device="meta")
    rows = torch.empty(1, 8, 200, device="meta")
    with planned(DEVICES["A100"]) as launches:
        given = (query, query, query, None, rows, None, None, 0)
        operators._attend(*given, 0.125, 0.0, -1, 0, 0)
        first, again = launches
        default, other = candidates("sm_80", "attend", 64, 200, 2)
        assert default.rows > 64 >= other.rows
        assert first._tuned().tile == default  # in a graph nothing can be timed
        capturing = False
        tuned = first._tuned()
        capturing = True
        assert first._tuned().tile == other
        assert tuned.tile == other
        assert again._tuned() is again  # its tile is that of the launch that it repeats
        assert tuned.careful().constants["RATIO"] * tuned.careful().tile.rows == other.rows
    (file,) = (tmp_path / "sharpmax" / "tiles").iterdir()
    assert list(json.loads(file.read_text(encoding="utf-8")).values()) == [list(other)]


@needs_triton
@pytest.mark.parametrize("queries", [1, 70])
def test_a_careful_launch_repeats_the_rows_of_any_tile(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, queries, 16, generator=generator).bfloat16()
    key, value = torch.randn(2, 1, 1, 200, 16, generator=generator).bfloat16().unbind()
    value[..., 20, 3] = math.inf
    value[..., 60, 5] = math.nan
    policy, run, ran = Exponential(6.0), Launch.run, []

    def tuned(launch: Launch) -> Launch:
        if launch.kernel == "attend" and not launch.constants["CAREFUL"]:
            launch = replace(launch, tile=launch.tile._replace(rows=32))
        ran.append(launch)
        return run(launch)

    monkeypatch.setattr(Launch, "run", tuned)
    found, expected = (
        sharpmax.attention(
            query, key, value, is_causal=queries > 1, enable_gqa=True, policy=policy, impl=impl
        )
        for impl in ("triton", "reference")
    )
    assert [launch.constants["RATIO"] for launch in ran if launch.kernel == "attend"] == [1, 2]
    assert not torch.isfinite(expected).all()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02, equal_nan=True)
