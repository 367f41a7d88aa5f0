from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments.clrs_text.task import _generator as generator
from experiments.clrs_text.task import algorithms
from experiments.clrs_text.task._generator import MissingGeneratorError, draw
from sharpmax import MissingExtraError

FIXTURE = json.loads((Path(__file__).parent / "strings.json").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[4]

DRAW_QUIETLY = """
import logging, sys
from experiments.clrs_text.task import algorithms, example
example("graham_scan", 4, seed=0)
assert not logging.getLogger().handlers
assert not [name for name in sys.modules if name.split(".")[0] in ("clrs", "tensorflow")]
"""


@pytest.mark.parametrize("algorithm", sorted({each["algorithm"] for each in FIXTURE["strings"]}))
def test_strings_are_those_of_the_package(algorithm: str) -> None:
    of_this = [each for each in FIXTURE["strings"] if each["algorithm"] == algorithm]
    assert len(of_this) == 12
    for each in of_this:
        texts = draw(algorithm, each["length"], seed=each["seed"], use_hints=each["use_hints"])
        for name, text in zip(("question", "answer"), texts, strict=True):
            if name in each:
                assert text == each[name]
            else:
                assert hashlib.sha256(text.encode()).hexdigest() == each[f"{name}_sha256"]


def test_the_algorithms_are_thirty_and_all_compared() -> None:
    assert len(algorithms()) == 30
    assert set(algorithms()) == {each["algorithm"] for each in FIXTURE["strings"]}


def test_drawing_leaves_no_sign() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRAW_QUIETLY],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout + done.stderr == ""


def test_a_package_that_is_imported_already_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["clrs", "clrs._src", "clrs._src.specs", "clrs._src.samplers", "clrs._src.clrs_text"]
    for name in [*names, "clrs._src.clrs_text.clrs_utils"]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    package = generator._load.__wrapped__()
    assert package.samplers is sys.modules["clrs._src.samplers"]
    assert package.text is sys.modules["clrs._src.clrs_text.clrs_utils"]


def test_tensorflow_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow: Any = ModuleType("tensorflow")
    tensorflow.Tensor = type("Tensor", (), {})
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    package = generator._load.__wrapped__()
    assert sys.modules["tensorflow"] is tensorflow
    assert "clrs" not in sys.modules
    assert package.samplers is not generator._package().samplers


@pytest.mark.parametrize("missing", ["clrs", "chex"])
def test_what_is_missing_is_said_with_both_commands(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "chex", sys.modules.get("chex"))
    if missing == "clrs":
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingGeneratorError) as caught:
        generator._load.__wrapped__()
    (pin,) = (
        line
        for line in (ROOT / "requirements/clrs.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    commands = f"pip install 'sharpmax[experiments]' && pip install --no-deps {pin}"
    assert str(caught.value) == f"CLRS-Text needs {missing}, which is not installed: {commands}"
    assert isinstance(caught.value, MissingExtraError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not [name for name in sys.modules if name.split(".")[0] == "clrs"]


def test_threads_draw_what_one_thread_draws() -> None:
    seeds = list(range(40))

    def one(seed: int) -> tuple[str, str]:
        return draw("bfs", 8, seed=seed)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, seeds)) == [one(seed) for seed in seeds]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"algorithm: expected one of activity_.*, got 'bogosort'"):
        draw("bogosort", 4, seed=0)
    with pytest.raises(ValueError, match="length: expected at least 4, got 3"):
        draw("minimum", 3, seed=0)
