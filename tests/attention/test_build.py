"""Compilers that are missing or fail, and the cache: who writes it, who may, what is damaged."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharpmax.kernels import _build, _compile

PROGRAM = """
import torch, sharpmax
from sharpmax.policies import Exponential
x = torch.randn(1, 2, 8, 16)
with torch.no_grad():
    auto = sharpmax.attention(x, x, x, policy=Exponential(1.0))
    composed = sharpmax.attention(x, x, x, policy=Exponential(1.0), impl="composed")
assert torch.equal(auto, composed)
try:
    sharpmax.attention(x, x, x, policy=Exponential(1.0), impl="cpu")
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("compiler", "message", "said"),
    [
        ("no-such-compiler", "impl='cpu': .*needs a C\\+\\+17 compiler.*'no-such-compiler'", 0),
        ("false", "impl='cpu': .*could not be compiled.*exit status 1", 1),
    ],
)
def test_auto_goes_on_and_the_name_says_why(
    compiler: str, message: str, said: int, tmp_path: Path
) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"
    }
    environment |= {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    assert re.search(message, result.stdout)
    assert result.stderr.count("compiling its CPU attention") == said


def test_machines_do_not_share_what_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _build._library.__wrapped__()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert _build._library.__wrapped__() != here


def test_the_library_holds_every_instruction_set_of_the_machine() -> None:
    assert list(_compile.variants("x86_64")) == ["baseline", "avx2", "avx512"]
    assert list(_compile.variants("aarch64")) == ["baseline"]


ASKING = """
import torch
from sharpmax._attention import check
from sharpmax._attention.impl import composed, cpu, reference
from sharpmax.policies import Exponential
x = torch.randn(1, 2, 8, 16)
problem = check(
    x, x, x, attn_mask=None, is_causal=False, alignment="upper_left", scale=None, softcap=None,
    sink=None, sink_role="key", window=None, enable_gqa=False, dropout=0.0,
)
for implementation in (cpu, composed, reference):
    assert implementation.unsupported(problem, Exponential(1.0)) is None
"""


def test_asking_whether_it_can_serve_compiles_nothing(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"
    }
    # A program that exists, and fails as a compiler.
    environment |= {"CXX": "false", "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", ASKING], capture_output=True, text=True, env=environment, check=True
    )
    assert "compiling" not in result.stderr
    assert not list(tmp_path.iterdir())


TINY = """
extern "C" __attribute__((visibility("default"))) int sharpmax_interface() { return 3; }
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a source that compiles in a moment in place of the kernels."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/sharpmax.cpp").write_text(TINY)
    monkeypatch.setattr(_build, "_HERE", tmp_path / "source")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    for name in ("_library", "_load", "load", "unavailable", "failure"):
        monkeypatch.setattr(_build, name, functools.cache(getattr(_build, name).__wrapped__))
    return tmp_path / "cache"


def compiled() -> Path:
    """The library, compiled and not yet loaded."""
    library = _build._library()
    library.parent.mkdir(parents=True, mode=0o700)
    _build._make(library)
    return library


@pytest.mark.usefixtures("cache")
def test_threads_that_come_at_once_get_one_module(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: _build.load(), range(8)))
    assert all(module is loaded[0] for module in loaded)
    assert capsys.readouterr().err.count("compiling its CPU attention") == 1


AT_ONCE = """
import sys
from pathlib import Path
from sharpmax.kernels import _build
_build._HERE = Path(sys.argv[1])
print(_build.load().sharpmax_interface())
"""


def test_processes_that_come_at_once_compile_once(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_ONCE, str(tmp_path / "source")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in processes]
    assert [output for output, _ in said] == ["3\n"] * 2
    assert sum(error.count("compiling its CPU attention") for _, error in said) == 1
    (folder,) = cache.iterdir()
    assert len(list(folder.iterdir())) == 2  # the library and its digest


@pytest.mark.parametrize(
    "damage",
    [
        lambda library: os.truncate(library, library.stat().st_size // 2),
        lambda library: library.write_bytes(library.read_bytes()[:-1] + b"?"),
        lambda library: library.with_name(f"{library.name}.sha256").unlink(),
        lambda library: library.with_name(f"{library.name}.sha256").write_bytes(b"\xff\xfe\x00"),
    ],
    ids=["cut off", "changed", "no digest", "digest changed"],
)
@pytest.mark.usefixtures("cache")
def test_a_damaged_library_is_compiled_again(
    damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    library = compiled()
    damage(library)
    _build.load()
    assert _build._is_intact(library)
    _build._load.__wrapped__()
    assert capsys.readouterr().err.count("compiling its CPU attention") == 2


def shared(path: Path, _: pytest.MonkeyPatch) -> None:
    path.chmod(0o770)


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(path, 4321, -1)
    else:
        own = path.stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: own + 1)


@pytest.mark.parametrize("make", [shared, foreign])
@pytest.mark.parametrize("which", ["cache", "folder", "library"])
def test_what_another_user_can_write_is_not_loaded(
    make: Callable[..., None], which: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compiled()
    make({"cache": cache, "folder": library.parent, "library": library}[which], monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", None)  # nothing gets that far
    who = "other users can write to it" if make is shared else r"user \d+ owns it"
    with pytest.raises(_build.CacheError, match=f"refused .*, because {who}; remove it or make"):
        _build.load()
    assert "TORCH_EXTENSIONS_DIR" in str(_build.failure())


def test_a_cache_that_another_user_can_exchange_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    cache.parent.chmod(0o777)
    monkeypatch.setattr(ctypes, "CDLL", None)
    with pytest.raises(_build.CacheError, match=r"refused .*, because every user can write to it"):
        _build.load()


@pytest.mark.usefixtures("cache")
def test_what_is_compiled_is_for_its_owner_alone() -> None:
    before = os.umask(0)
    try:
        _build.load()
    finally:
        os.umask(before)
    library = _build._library()
    for path in (library, library.parent, library.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def read_only(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that nobody but root can write to, and a user who is not root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert folder != cache
        folder.chmod(0o555)
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", name)
        _build._library()  # reads the source, which only the owner of the test can
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(before)
            folder.chmod(0o755)


def test_a_cache_that_is_read_only_gets_a_sentence(read_only: Path) -> None:
    with pytest.raises(
        _build.CacheError, match=rf"^{read_only}/.*cannot be kept there \(Permission denied\); set"
    ):
        _build.load()
    assert not list(read_only.iterdir())
    assert "cannot be kept there" in str(_build.failure())  # so that "auto" goes on


@pytest.mark.usefixtures("cache")
def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "there is no home; set TORCH_EXTENSIONS_DIR" in str(_build.unavailable())
    with pytest.raises(_build.CacheError, match="there is no home"):
        _build.load()
    assert "there is no home" in str(_build.failure())


CHILDREN = """
import multiprocessing
import numpy as np, torch
import sharpmax
from sharpmax.policies import Exponential

def compute(queue=None):
    # NumPy's arithmetic: PyTorch's own may wait for ever in a fork of a process with threads.
    query = torch.from_numpy(np.sin(np.arange(2 * 300 * 32, dtype="f4")).reshape(1, 2, 300, 32))
    with torch.no_grad():
        output = sharpmax.attention(query, query, query, policy=Exponential(1.0), impl="cpu")
    total = float(np.square(output.numpy()).sum())
    return total if queue is None else queue.put(total)

if __name__ == "__main__":
    torch.set_num_threads(2)
    here = compute()
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=compute, args=(queue,))
        process.start()
        assert queue.get(timeout=120) == here, method
        process.join()
        print(method)
"""


def test_children_of_a_process_that_used_the_kernels(tmp_path: Path) -> None:
    program = tmp_path / "children.py"
    program.write_text(CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    result = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, env=environment, timeout=400, check=False,
    )  # fmt: skip
    assert result.stdout.split() == ["fork", "spawn"], result.stderr
