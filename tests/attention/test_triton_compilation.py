"""Two entries of the table of tiles, compiled without a device; the command compiles all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.attention_speed.compilation import (
    configurations,
    drop_stale,
    faults,
    fingerprint,
)
from triton_interpreter import missing

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "experiments" / "attention_speed" / "results" / "compilation.json"
KINDS = {"sm_80": "mma", "gfx942": "v_mfma"}
needs_triton = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@needs_triton
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
    assert all(record["kinds"] == [KINDS[architecture]] for record in records)


def test_what_is_wrong_with_a_compiled_kernel_is_said() -> None:
    record = {
        "architecture": "sm_80",
        "variant": "causal",
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


@needs_triton
def test_all_present_kernels_are_published_and_have_no_fault() -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    present = {each.name: each for each in configurations()}
    assert sorted(published["steps"]) == sorted(present)
    for name, record in zip(published["steps"], published["records"], strict=True):
        assert record["compiled_from"] == fingerprint(present[name]), name
        assert not faults(record), name


@needs_triton
def test_stale_records_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "compilation.json"
    first, second = configurations()[:2]
    records = [
        {"compiled_from": fingerprint(first), "spills": 1},
        {"compiled_from": "that of an earlier kernel", "spills": 2},
        {"compiled_from": "anything", "spills": 3},
    ]
    steps = [first.name, second.name, "a configuration that left the table"]
    content = {"steps": steps, "records": records, "memory": []}
    path.write_text(json.dumps(content), encoding="utf-8")
    drop_stale(path)
    left = json.loads(path.read_text(encoding="utf-8"))
    assert left == content | {"steps": steps[:1], "records": records[:1]}
