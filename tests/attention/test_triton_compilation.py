"""Two entries of the table of tiles, compiled without a device; the command compiles all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.attention_speed.compilation import configurations, faults
from triton_interpreter import missing

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize(
    ("architecture", "kernel", "width"), [("sm_80", "by_query", 128), ("gfx942", "measure", 64)]
)
def test_no_spill_and_matrix_instructions(
    architecture: str, kernel: str, width: int, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    chosen = ["--architecture", architecture, "--kernel", kernel, "--width", str(width)]
    chosen += ["--dtype", "bfloat16", "--variant", "causal", "--output", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "experiments.attention_speed", "compile", *chosen],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    records = json.loads((tmp_path / "compilation.json").read_text(encoding="utf-8"))["records"]
    assert records
    assert all(record["registers"] > 0 for record in records)
    assert all(record["matrix_instructions"] > 0 for record in records)


def test_what_is_wrong_with_a_compiled_kernel_is_said() -> None:
    record = {
        "architecture": "sm_80",
        "dtype": "bfloat16",
        "tile": {"rows": 64},
        "spills": 8,
        "shared": 200_000,
        "matrix_instructions": 0,
    }
    assert faults(record) == [
        "8 spilled",
        "200,000 bytes of shared memory",
        "no matrix instruction",
    ]
    assert not faults(record | {"spills": 0, "shared": 1000, "matrix_instructions": 4})


def test_configurations_are_told_apart_by_their_names() -> None:
    names = [each.name for each in configurations()]
    assert len(set(names)) == len(names) > 300
