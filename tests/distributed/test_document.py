"""The script of the guide runs under torchrun as written, with the same result on any ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _printed(script: Path, ranks: int) -> str:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    found = subprocess.run(
        [sys.executable, *command, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        timeout=120,
    )
    return found.stdout


def test_the_script_of_the_guide(tmp_path: Path) -> None:
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    match = re.search(r"Save this as `attend.py`:\n\n```text\n(.*?)```", text, re.DOTALL)
    assert match is not None
    script = tmp_path / "attend.py"
    script.write_text(match[1], encoding="utf-8")
    alone, together = _printed(script, 1), _printed(script, 2)
    assert "torch.Size([1, 8, 4096, 64])" in alone
    assert alone == together
