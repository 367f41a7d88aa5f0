from __future__ import annotations

from pathlib import Path

import pytest

from experiments.models_speed.memory import extra_memory
from experiments.models_speed.works import small_model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_shown_weights_are_in_memory_and_diagnosed_ones_are_not(tmp_path: Path) -> None:
    small_model(1024).save_pretrained(tmp_path)
    shown, diagnosed = (
        extra_memory(way, tmp_path, length=1024, threads=1)
        for way in ("output_attentions", "diagnose")
    )
    assert shown is not None
    assert diagnosed is not None
    # Two layers of four heads of 1024 x 1024 weights.
    assert shown > 2 * 4 * 1024 * 1024 * 4
    assert diagnosed < shown / 2


def test_other_ways(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^way: expected one of forward, diagnose"):
        extra_memory("backward", tmp_path, length=1, threads=1)
