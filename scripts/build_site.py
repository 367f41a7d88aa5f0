"""Collect the pages of the site under build/site/source, and build it.

    python scripts/build_site.py

Documents keep their places in the repository, so that their links and pictures work on the site as
well. The reference is made from what the modules export, the command line from its commands.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import typer.main
from site_notebooks import write_page

from sharpmax.cli._app import app
from sharpmax.report.explorer import write_explorer

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build/site/source"
PAGES = ("*.md", "docs/*.md", "experiments/*/README.md")
FILES = (
    "docs/*.css",
    "docs/notebooks/*.ipynb",
    "experiments/*/results/*.png",
    "experiments/*/results/*.svg",
    "experiments/*/results/*.md",
)
MODULES = (
    "", "policies", "normalisers", "nn", "distributed", "jax", "models", "tabular", "tasks",
    "theory",
)  # fmt: skip
_LINK = re.compile(
    r"(?P<text>!?\[(?:[^\[\]]|\n)*\])\((?!https?:|#)(?P<file>[^)#\s]+)(?P<anchor>#[^)]*)?\)"
)

# What the search puts first, if a word is in many places: a page that explains it.
BOOSTS = {"docs/errors.md": 2, "reference/policies.md": 2, "experiments/*/results/*.md": 0.1}
_ROW = re.compile(r"^\|.*", re.MULTILINE)
_CODE = re.compile(r"(?<!`)`--[a-z-]+`(?!`)")
_OPTION = re.compile(r"(?P<code>`[^`]*`)|(?<![\w-])--[a-z][a-z-]*")


def collect() -> None:
    """Write all sources of the site, new."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    found = sorted(path for pattern in (*PAGES, *FILES) for path in ROOT.glob(pattern))
    for path in found:
        place = SOURCE / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            place.write_text(_linked(path, text, set(found)), encoding="utf-8")
        else:
            shutil.copyfile(path, place)
        if path.suffix == ".ipynb":
            page = place.with_suffix(".md")
            page.write_text(_linked(path, write_page(path, page), set(found)), encoding="utf-8")
    write_explorer(SOURCE / "explorer.html")
    (SOURCE / "reference").mkdir()
    for name in MODULES:
        page = SOURCE / f"reference/{name or 'sharpmax'}.md"
        page.write_text(reference(".".join(filter(None, ("sharpmax", name)))), encoding="utf-8")
    (SOURCE / "reference/command-line.md").write_text(command_line(), encoding="utf-8")
    for pattern, boost in BOOSTS.items():
        for page in SOURCE.glob(pattern):
            text = page.read_text(encoding="utf-8")
            page.write_text(f"---\nsearch: {{ boost: {boost} }}\n---\n\n{text}", encoding="utf-8")


def reference(module: str) -> str:
    """Return the page of a module: every name that it exports.

    Raises:
        LookupError: a function or a class has no docstring.
    """
    loaded = importlib.import_module(module)
    parts = [f"# {module}\n", (loaded.__doc__ or "").split("\n\n")[0], ""]
    for name in sorted(loaded.__all__, key=str.lower):
        value = getattr(loaded, name)
        if type(value).__name__ == "module" or name == "__version__":
            continue
        if not inspect.isclass(value) and not inspect.isfunction(value):
            parts.append(f"::: {module}.{name}\n")
            continue
        if not (value.__doc__ or "").strip():
            raise LookupError(f"{module}.{name} has no docstring")
        # Where it is defined: names that are loaded on demand cannot be followed in the source.
        home = inspect.getmodule(value)
        place = home.__name__ if home is not None and name in vars(home) else module
        parts.append(f"::: {place}.{name}\n")
    return "\n".join(parts)


def command_line() -> str:
    """Return the page of the command line, from its commands."""
    parts = ["# Command line\n", f"{app.info.help}\n"]
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        words = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
        parts += [f"## sharpmax {name}\n", "```console"]
        parts += [f"$ sharpmax {name} {words} [OPTIONS]".replace("  ", " "), "```\n"]
        texts = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
        parts += [_OPTION.sub(_code, text) + "\n" for text in texts]
        parts += ["| argument or option | meaning | default |", "|---|---|---|"]
        for parameter in (*arguments, *options):
            written = " ".join((*parameter.opts, *parameter.secondary_opts))
            shown = parameter.name.upper() if parameter in arguments else written
            default = getattr(parameter, "show_default", None)
            if not isinstance(default, str):
                default = parameter.default
            if isinstance(default, bool):
                default = f"`{parameter.opts[0]}`" if default else ""
            default = "" if default is None or callable(default) else f"{default}"
            cells = (f"`{shown}`", _OPTION.sub(_code, parameter.help or ""), default)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return _unbroken("\n".join(parts))


def _code(option: re.Match[str]) -> str:
    """Return an option as code, and what is code already as it is."""
    return option["code"] or f"`{option[0]}`"


def _linked(path: Path, text: str, pages: set[Path]) -> str:
    """Return a document for the site, where links to files that are not on it become text."""

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / match["file"]))
        anchor = match["anchor"] or ""
        if target in pages and target != path and target.suffix == ".ipynb":
            return f"{match['text']}({Path(match['file']).with_suffix('.md')}{anchor})"
        if target in pages or (path.suffix == ".ipynb" and target.suffix == ".png"):
            return match[0]
        if target / "README.md" in pages:
            return f"{match['text']}({match['file'].rstrip('/')}/README.md{anchor})"
        return match["text"].lstrip("!")[1:-1]

    return _LINK.sub(link, _unbroken(text.replace("```python\n>>>", "```pycon\n>>>")))


def _unbroken(text: str) -> str:
    """Return a document whose options, and numbers in tables, are not broken over lines."""

    def row(match: re.Match[str]) -> str:
        return re.sub(r"(?<=\de)-(?=\d)", "\u2011", match[0].replace(" ± ", "\xa0±\xa0"))

    return _CODE.sub(r"\g<0>{ .whole }", _ROW.sub(row, text))


if __name__ == "__main__":
    collect()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true", "DISABLE_MKDOCS_2_WARNING": "true"}
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
