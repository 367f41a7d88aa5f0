"""What all tests share: the frameworks and the settings of hypothesis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from frameworks import Framework

settings.register_profile(
    "sharpmax",
    deadline=None,  # compilation makes the first example slow
    derandomize=True,  # a gate has to give the same answer twice
    max_examples=40,
    # The fixture only names a framework: nothing in it needs to be made anew for each example.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("sharpmax")


@pytest.fixture(params=["numpy", "torch", "jax"])
def framework(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


_HOLDER = """
import sys, time
from pathlib import Path
from sharpmax._files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the folder `tmp_path / "held"` until it is killed."""
    folder = tmp_path / "held"
    folder.mkdir()
    command = [sys.executable, "-c", _HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()
