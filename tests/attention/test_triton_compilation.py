"""Two entries of the table of tiles, compiled without a device; the command compiles all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_interpreter import missing

SCRIPT = Path(__file__).parent.parent / "triton_compilation.py"


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize(
    ("architecture", "kernel", "width"), [("sm_80", "by_query", 128), ("gfx942", "attend", 64)]
)
def test_no_spill_and_matrix_instructions(architecture: str, kernel: str, width: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    chosen = ["--architecture", architecture, "--kernel", kernel, "--width", str(width)]
    ran = subprocess.run(
        [sys.executable, SCRIPT, *chosen],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
