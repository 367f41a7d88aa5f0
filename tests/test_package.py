from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sharpmax
from sharpmax import models, normalisers, policies, theory

ROOT = Path(__file__).parent.parent
PINNED = (
    "adapters", "cli", "dev", "docs", "entmax", "experiments", "jax", "models", "report", "torch"
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_IMPORTED = {"jax", "matplotlib", "ml_dtypes", "pandas", "scipy", "torch", "transformers"}

MEASURE_IMPORT = """
import json, sys, time
import numpy
before, start = set(sys.modules), time.perf_counter()
import {module}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before), sorted(sys.modules)]))
"""


def _measure_import(module: str) -> tuple[float, list[str], set[str]]:
    output = subprocess.run(
        [sys.executable, "-c", MEASURE_IMPORT.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    seconds, own, loaded = json.loads(output)
    return seconds, own, {name.split(".")[0] for name in loaded}


def test_import_brings_no_framework_and_little_else() -> None:
    measured = [_measure_import("sharpmax") for _ in range(3)]
    _, own, loaded = measured[0]
    assert not loaded & (NOT_IMPORTED | {"rich", "typer"})
    # Counted beyond NumPy, which is the one thing that has to be there.
    assert len(own) < 120, own
    # Modules are what matters; the time is a generous guard against work at import.
    assert min(seconds for seconds, *_ in measured) < 0.5


@pytest.mark.parametrize("module", ["sharpmax.theory", "sharpmax.cli"])
def test_rooms_import_no_framework(module: str) -> None:
    assert not _measure_import(module)[2] & NOT_IMPORTED


def test_every_public_name_is_there_and_documented() -> None:
    for module in (sharpmax, models, normalisers, policies, theory):
        assert module.__doc__
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert value.__doc__, f"{module.__name__}.{name}"


def test_one_place_for_the_version() -> None:
    assert importlib.metadata.version("sharpmax") == sharpmax.__version__
    assert "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", sharpmax.__version__)
    places = [
        path
        for path in _text_files()
        if re.search(
            rf"version[\W_]{{1,9}}{re.escape(sharpmax.__version__)}\b", path.read_text("utf-8")
        )
    ]
    # A citation file is read without running anything, so it repeats the version.
    assert {path.name for path in places} == {"_version.py", "CITATION.cff"}


def test_typed_and_base_dependencies() -> None:
    assert (ROOT / "src/sharpmax/py.typed").exists()
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"numpy"}


def test_everything_the_gate_installs_is_pinned() -> None:
    lines = (ROOT / "requirements/dev.txt").read_text() + (
        ROOT / "requirements/torch.txt"
    ).read_text()
    pins = {
        canonicalize_name(line.split("==")[0]): Requirement(line)
        for line in lines.splitlines()
        if line and not line.startswith("#")
    }
    assert all(str(pin.specifier).startswith("==") for pin in pins.values())
    extras = PROJECT["optional-dependencies"]
    asked = [
        *PROJECT["dependencies"],
        *(line for e in PINNED for line in extras[e]),
    ]
    for requirement in map(Requirement, asked):
        if requirement.name == "sharpmax":
            continue
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not pinned"
        version = str(pin.specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{pin} is not {requirement}"


def test_readme_names_every_extra() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        PROJECT["optional-dependencies"]
    )


def test_pytorch_came_first_and_stayed() -> None:
    # Whatever asks for a range of versions has to find the pinned one, not to bring its own.
    (pin,) = (
        Requirement(line)
        for line in (ROOT / "requirements/torch.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert pin.specifier.contains(importlib.metadata.version("torch"))


def test_no_path_of_a_machine() -> None:
    # Put together here, so that this file does not contain what it looks for.
    pattern = re.compile("/" + r"(?:work|root|home|Users|tmp)/[\w.-]+")
    found = {
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in _text_files()
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize("repository", ["", "https://example.org/owner/sharpmax"])
def test_description_has_absolute_links(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hatch_build import Description

    monkeypatch.setenv("SHARPMAX_REPOSITORY", repository)
    metadata: dict[str, Any] = {"version": "9.8.7"}
    Description(str(ROOT), {}).update(metadata)
    links = re.findall(r"(!?)\[[^\[\]]*\]\(([^)]*)\)", metadata["readme"]["text"])
    assert all(address.startswith("https://") for _, address in links)
    pictures = [address for picture, address in links if picture]
    place = "raw/v9.8.7/experiments/dispersion/results/dispersion.png"
    assert pictures == ([f"{repository}/{place}"] if repository else [])


def test_workflows_run_the_gate_as_it_is() -> None:
    for name in ("gate", "publish"):
        workflow = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
        assert "- run: .ci/run\n" in workflow
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").endswith("exec make test\n")


def _text_files() -> list[Path]:
    """The files of the repository that people write."""
    folders = [ROOT / name for name in ("src", "tests", "docs", "requirements", ".ci")]
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    binary = {".png", ".pyc", ".so", ".o", ".npz", ".safetensors"}
    hidden = {"__pycache__", ".git"}
    return [p for p in files if p.suffix not in binary and not hidden & set(p.parts)]
