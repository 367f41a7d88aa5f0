"""The site builds strictly, fetches nothing, and has every document and every exported name."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build/site/html"
NOT_NAMES = {
    "__version__",
    "distributed",
    "jax",
    "models",
    "nn",
    "normalisers",
    "policies",
    "tasks",
    "theory",
}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    command = [sys.executable, str(ROOT / "scripts/build_site.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = SITE.rglob("*.html")
    return {path.relative_to(SITE).as_posix(): path.read_text("utf-8") for path in found}


def test_nothing_comes_from_elsewhere(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page):
            address = re.search(r"(?:src|href)=\"?([^\"\s>]+)", tag)
            assert address is None or not re.match(r"(?:https?:)?//", address[1]), f"{name}: {tag}"
    styles = "".join(path.read_text("utf-8") for path in SITE.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?:", styles)
    assert (SITE / "search/search_index.json").stat().st_size > 100_000


def test_every_document_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    for pattern in ("docs/*.md", "docs/notebooks/*.ipynb", "experiments/*/README.md", "*.md"):
        for path in ROOT.glob(pattern):
            path = path.with_suffix(".md")
            assert f": {path.relative_to(ROOT).as_posix()}" in navigation, (
                f"name {path.name} in mkdocs.yml"
            )


@pytest.mark.parametrize(
    "module",
    [
        "",
        "distributed",
        "jax",
        "models",
        "nn",
        "normalisers",
        "policies",
        "tabular",
        "tasks",
        "theory",
    ],
)
def test_every_exported_name_is_in_the_reference(pages: dict[str, str], module: str) -> None:
    page = pages[f"reference/{module or 'sharpmax'}.html"]
    loaded = importlib.import_module(".".join(filter(None, ("sharpmax", module))))
    for name in set(loaded.__all__) - NOT_NAMES:
        assert re.search(rf"id=\"[\w.]*\.{name}\" class=\"doc doc-heading", page), name


def test_notebooks_are_shown_with_their_output(pages: dict[str, str]) -> None:
    page = pages["docs/notebooks/dispersion.html"]
    assert len(re.findall(r"<img\b", page)) == 2
    assert "in blocks 13.212826" in page
    assert 'href="dispersion.ipynb"' in page
    assert 'href="notebooks/training.html"' in pages["docs/start.html"]


def test_the_sidebar_names_every_page_of_a_section(pages: dict[str, str]) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("  - Results:\n")[1]
    results = navigation.partition("  - Reference:")[0]
    sidebar = pages["experiments/serving/index.html"].split('class="md-nav md-nav--secondary"')[0]
    for title in re.findall(r"- ([^:]+): experiments/", results):
        assert re.search(rf'class="md-ellipsis">\s*{title}\s*<', sidebar), title


def test_numbers_in_tables_stay_whole(pages: dict[str, str]) -> None:
    page = pages["experiments/max_retrieval/index.html"]
    assert re.search(r">\d+\.\d+\xa0±\xa0\d", page)
    assert re.search(r">\de\u2011\d+<", page)
    assert not re.search(r"<td[^>]*>[^<]*(?: ± |\de-\d)", page)


@pytest.mark.usefixtures("pages")
def test_search_puts_generated_tables_last() -> None:
    index = json.loads((SITE / "search/search_index.json").read_text(encoding="utf-8"))
    boosts = {entry["location"]: entry.get("boost", 1) for entry in index["docs"]}
    assert boosts["experiments/attention_speed/results/ratios.html"] < 1
    assert boosts["docs/errors.html"] > boosts["docs/start.html"] == 1


def test_commands_and_pictures(pages: dict[str, str]) -> None:
    app = importlib.import_module("sharpmax.cli._app").app
    for command in app.registered_commands:
        name = command.callback.__name__
        assert f"sharpmax {name}" in pages["reference/command-line.html"]
    assert "from <code>sharpmax diagnose --json</code>." in pages["reference/command-line.html"]
    assert 'with <code class="whole">--resume</code>' in pages["reference/command-line.html"]
    for name, page in pages.items():
        assert "{ .whole }" not in page, name
        for image in re.findall(r"<img\b[^>]*>", page):
            assert re.search(r"alt=\"[^\"]+\"", image), f"{name}: {image}"


def test_errors_are_those_of_the_code() -> None:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    sources = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    # Messages that are broken over lines, joined.
    code = re.sub(r"\"\s*\n\s*f?\"", "", "\n".join(sources))
    code = re.sub(r"\{[^{}]*\}", "…", code)
    for message in re.findall(r"[:r] \"([^\"]+)\"", page):
        for part in filter(None, (part.strip(" '") for part in message.split("…"))):
            assert part in code, message
    for name in re.findall(r"class (\w+Error)\((?:SharpmaxError|\w*RefusedError)", code):
        # One that is always caught.
        assert name == "LooksAheadError" or f"`{name}`" in page, f"describe {name} in errors.md"
