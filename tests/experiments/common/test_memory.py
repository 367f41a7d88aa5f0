from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.common.memory import measure_apart

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")

MODULE = """
import json, sys, torch
from experiments.common.memory import growth
(size,) = json.loads(sys.argv[1])
extra, result = growth(lambda: torch.ones(size, dtype=torch.uint8).max().item())
assert result == 1
print(extra)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_grows.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_growth_is_what_a_call_takes() -> None:
    extra = measure_apart("module_that_grows", 64 << 20)
    assert extra is not None
    assert 56 << 20 < extra < 72 << 20


def test_a_process_that_fails() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        measure_apart("module_that_grows", "large")


def test_elsewhere_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.setattr(sys, "executable", "nothing is run")
    assert measure_apart("module_that_grows", 1) is None
