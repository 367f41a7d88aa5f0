from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.memory import measure_apart
from experiments.models_speed.memory import extra_memory
from experiments.models_speed.passes import small_model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports memory")
def test_returned_weights_take_memory_and_a_diagnosis_does_not(tmp_path: Path) -> None:
    small_model(1024).save_pretrained(tmp_path)
    shown, diagnosed = (
        measure_apart(extra_memory, method, str(tmp_path), 1024, 1)
        for method in ("output_attentions", "diagnose")
    )
    assert shown is not None
    assert diagnosed is not None
    # Two layers of four heads of 1024 x 1024 weights.
    assert shown > 2 * 4 * 1024 * 1024 * 4
    assert diagnosed < shown / 2
