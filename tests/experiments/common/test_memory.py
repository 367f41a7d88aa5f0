from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.common.memory import measure_apart

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="only Linux reports memory"
)

MODULE = """
import torch
from experiments.common.memory import growth

def grow(size):
    extra, result = growth(lambda: torch.ones(size, dtype=torch.uint8).max().item())
    assert result == 1
    return extra
"""


@pytest.fixture
def grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    (tmp_path / "module_that_grows.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_that_grows", raising=False)
    function: Callable[[int], int] = importlib.import_module("module_that_grows").grow
    return function


def test_growth_is_the_memory_of_a_call(grow: Callable[[int], int]) -> None:
    extra = measure_apart(grow, 64 << 20)
    assert extra is not None
    assert 56 << 20 < extra < 72 << 20


def test_a_process_that_fails(grow: Callable[[int], int]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        measure_apart(grow, "large")


def test_other_systems_do_not_report_memory(
    grow: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.setattr(sys, "executable", "nothing is run")
    assert measure_apart(grow, 1) is None
