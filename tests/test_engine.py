from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import sharpmax
from experiments.common.timing import thread_count
from experiments.max_retrieval import run as max_retrieval
from experiments.max_retrieval.arms import AS_TRAINED, Arm, Checkpoint
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.study import Settings, Study
from experiments.max_retrieval.training import Progress
from sharpmax import _engine
from sharpmax._engine import in_order, run_cells, started
from sharpmax._extras import MissingExtraError
from sharpmax._files import RefusedError
from sharpmax.cli._app import app
from sharpmax.policies import Constant

_SETTINGS = Settings((0, 5), 1500, (16, 32), (24, 16))
_ARMS = {
    "plain": Arm(
        "plain",
        Recipe(steps=1500, batch=8, width=16),
        (Checkpoint(1500, "plain-1500", {"inference": ("softmax", "paper")}),),
    ),
    "ssmax": Arm(
        "ssmax",
        Recipe("ssmax", steps=100, batch=8, width=16),
        (Checkpoint(100, "with-ssmax", {"trained": (AS_TRAINED,)}),),
    ),
    "linear": Arm(
        "linear",
        Recipe("linear", steps=100, batch=8, width=16),
        (Checkpoint(100, "with-linear", {"trained": (AS_TRAINED,)}),),
    ),
}


def test_cells_are_taken_one_after_the_other() -> None:
    found: list[int] = []
    said: list[tuple[int, str]] = []

    def work(cell: int, tell: Callable[[str], None]) -> int:
        tell(f"at {cell}")
        return cell + 1

    # Each depends on the result before it.
    cells = (found[-1] if found else 0 for _ in range(3))
    for cell, result in run_cells(work, cells, on_message=lambda *at: said.append(at)):
        found.append(result)
        assert said[-1] == (cell, f"at {cell}")
    assert found == [1, 2, 3]


def test_results_come_in_the_order_of_their_cells_as_soon_as_they_can() -> None:
    taken = []

    def found() -> Iterator[tuple[str, int]]:
        for cell in "bac":
            taken.append(cell)
            yield cell, ord(cell)

    ordered = in_order("abc", found())
    assert (next(ordered), taken) == (("a", 97), ["b", "a"])
    assert (next(ordered), taken) == (("b", 98), ["b", "a"])
    assert next(ordered) == ("c", 99)


def test_a_process_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: queue.Queue[object] = queue.Queue()
    alive = True

    class Parent:
        def is_alive(self) -> bool:
            return alive

    monkeypatch.setattr(multiprocessing, "parent_process", Parent)
    monkeypatch.setitem(_engine._worker, "messages", messages)
    monkeypatch.setitem(_engine._worker, "work", lambda cell, tell: tell(f"in {cell}"))
    _engine._run_beside(4, "a cell")
    assert messages.get() == (4, "in a cell")
    alive = False
    with pytest.raises(SystemExit):
        _engine._run_beside(4, "a cell")
    assert messages.empty()


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharpmax\[ray\]'"):
        next(run_cells(lambda cell, _: cell, [1], engine="ray"))
    asked = ["evaluate", "none", "--output", str(tmp_path / "none"), "--engine"]
    result = CliRunner().invoke(app, [*asked, "ray"])
    assert isinstance(result.exception, MissingExtraError)
    assert CliRunner().invoke(app, [*asked, "spark"]).exit_code == 2
    assert not (tmp_path / "none").exists()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray cluster of this machine that writes nothing into the user's folders."""
    pytest.importorskip("ray")
    with TemporaryDirectory(prefix="ray-") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 32)
        # Beside other tests, workers of low priority would take minutes.
        monkeypatch.setenv("RAY_worker_niceness", "0")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with thread_count(1), started("ray"):
            yield
        left = [each.name() for each in psutil.Process().children(recursive=True)]
        assert not [name for name in left if name.startswith(("ray", "gcs_server"))]


# Once JAX has run in this process it warns of every fork. Forks of Ray start other programs.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
@pytest.mark.usefixtures("cluster")
def test_a_sweep_on_ray_survives_a_lost_worker_and_equals_the_local_one(tmp_path: Path) -> None:
    pids: dict[str, list[int]] = defaultdict(list)
    killed: list[int] = []

    def work(study: Study) -> Callable[[str, Any], Any]:
        def measure(name: str, tell: Any) -> Any:
            tell(os.getpid())
            return max_retrieval._measure(study, _ARMS, name, tell)

        return measure

    def on_message(name: str, at: Any) -> None:
        if isinstance(at, int):
            pids[name].append(at)
        elif isinstance(at, Progress) and name == "plain" and not killed:
            assert at.step < at.steps, "in the middle"
            killed.append(pids[name][-1])
            os.kill(killed[0], signal.SIGKILL)

    paths = []
    for engine in ("ray", "local"):
        study = Study(tmp_path / engine, _SETTINGS, "a command")
        study.folder.mkdir()
        found = run_cells(
            work(study), list(_ARMS), engine=engine, folder=study.folder,
            on_message=on_message if engine == "ray" else lambda *_: None,
        )  # fmt: skip
        for name, records in in_order(_ARMS, found):
            study.add(_ARMS[name].recipes, records)
        paths.append(study.table_path)
    assert pids["plain"][0] == killed[0] != pids["plain"][1]
    assert len(pids["plain"]) == 2
    assert paths[0].read_bytes() == paths[1].read_bytes()

    def fails(cell: int, _: object) -> int:
        raise RefusedError(f"cell {cell}: expected another")

    with pytest.raises(RefusedError, match="cell 7: expected another"):
        list(run_cells(fails, [7], engine="ray"))
    with pytest.raises(RefusedError, match="choose an --output on a shared disk"):
        list(run_cells(fails, [7], engine="ray", folder=tmp_path / "not there"))
    with thread_count(99), pytest.raises(RefusedError, match="with 99 CPUs"):
        list(run_cells(fails, [7], engine="ray"))

    class Bytes:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return list(text.encode())

    torch.manual_seed(0)
    build: Any = LlamaForCausalLM
    model = build(
        LlamaConfig(
            vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2,
        )
    )  # fmt: skip
    reported = []
    evaluations = [
        sharpmax.evaluate(
            model, Bytes(), "The grass is green. The sky is blue. " * 40,
            changes={"sharp": Constant(2.0), "none": Constant(1.0)},
            tasks=["passkey", "text"], lengths=[128], wordings=["usual"], questions=4, contexts=2,
            windows=2, path=tmp_path / f"evaluation-{engine}.json", engine=engine,
            on_progress=reported.append,
        )
        for engine in ("ray", "local")
    ]  # fmt: skip
    assert evaluations[0].to_dict() == evaluations[1].to_dict()
    assert max(each.finished for each in reported) == reported[0].total
