"""Check the files in dist/ before they are published.

    python scripts/check_release.py

Wheels hold the package and nothing else, the sdist what builds it. The package index accepts them
and draws the README, whose links are absolute. CITATION.cff is valid. The sdist and the wheel of
this machine install into empty environments, with their dependencies, and work there.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import readme_renderer.markdown

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
VALIDATOR = "cffconvert==2.0.0"
TRY = """
import numpy as np, sharpmax
from sharpmax.policies import EntropyTarget
logits = np.r_[2.0, np.zeros(4095)]
assert sharpmax.softmax(logits).max() < 0.01 < sharpmax.softmax(logits, EntropyTarget(2.0)).max()
print(sharpmax.__version__)
"""


def main() -> None:
    """Check everything that is in dist/."""
    (sdist,), wheels = DIST.glob("*.tar.gz"), sorted(DIST.glob("*.whl"))
    own = [wheel for wheel in wheels if wheel.stem.endswith(os.uname().machine)]
    if len(own) != 1 or len(wheels) != 2:
        sys.exit(f"dist: expected one wheel per kind of machine, got {[w.name for w in wheels]}")
    version = sdist.name.removeprefix("sharpmax-").removesuffix(".tar.gz")
    for wheel in wheels:
        check_wheel(wheel, version)
    check_sdist(sdist, version)
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, (*wheels, sdist)))
    check_changelog(version)
    check_citation()
    for file in (*own, sdist):
        try_out(file, version)


def check_wheel(wheel: Path, version: str) -> None:
    """Refuse a wheel with other files than those of the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"sharpmax-{version}.dist-info/METADATA").decode()
    same(wheel, names, {*tracked("src"), "sharpmax/kernels/libsharpmax.so"})
    check_description(wheel, metadata)


def check_sdist(sdist: Path, version: str) -> None:
    """Refuse an sdist with other files than the package and what builds it."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        packed = archive.extractfile(f"sharpmax-{version}/PKG-INFO")
        assert packed is not None
        metadata = packed.read().decode()
    others = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md"}
    others |= {"hatch_build.py", "pyproject.toml"}
    same(sdist, names, {f"src/{name}" for name in tracked("src")} | others)
    check_description(sdist, metadata)


def tracked(folder: str) -> set[str]:
    """Return the files of a folder that belong to the repository, relative to it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.removeprefix(f"{folder}/") for name in listed.stdout.split("\0") if name}


def same(file: Path, found: set[str], expected: set[str]) -> None:
    """Refuse a file with more or less in it than expected."""
    if found != expected:
        more, less = sorted(found - expected), sorted(expected - found)
        sys.exit(f"{file.name}: expected the files of the repository; more: {more}, less: {less}")
    print(f"{file.name}: {len(found)} files, {file.stat().st_size:,} bytes")  # noqa: T201


def check_description(file: Path, metadata: str) -> None:
    """Draw the description as the package index does, and refuse links that lead nowhere."""
    text = str(email.message_from_string(metadata).get_payload())
    drawn = readme_renderer.markdown.render(text)
    if not drawn or "<h2" not in drawn:
        sys.exit(f"{file.name}: the description cannot be drawn")
    addresses = re.findall(r"(?:href|src)=\"([^\"]*)\"", drawn)
    if relative := [each for each in addresses if not each.startswith(("https://", "#"))]:
        sys.exit(f"{file.name}: expected absolute links in the description, got {relative}")
    if os.environ.get("SHARPMAX_REPOSITORY") and "<img" not in drawn:
        sys.exit(f"{file.name}: expected the pictures of the README, got none")


def check_changelog(version: str) -> None:
    """Refuse a version that the changelog does not describe."""
    if f"\n## [{version}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit(f"CHANGELOG.md: expected a section [{version}]")


def check_citation() -> None:
    """Validate CITATION.cff by its schema, in an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        python = empty_environment(Path(folder))
        # Its schema reader still imports pkg_resources.
        pip(python, "install", "--quiet", VALIDATOR, "setuptools<81")
        run(str(python.with_name("cffconvert")), "--validate", "-i", str(ROOT / "CITATION.cff"))


def try_out(file: Path, version: str) -> None:
    """Install a file with its dependencies into an empty environment, and use it there."""
    with tempfile.TemporaryDirectory() as folder:
        python = empty_environment(Path(folder))
        pip(python, "install", "--quiet", f"{file}[cli]")
        pip(python, "check")
        found = run(str(python), "-c", TRY, cwd=folder).strip()
        if found != version:
            sys.exit(f"{file.name}: expected version {version}, got {found}")
        run(str(python.with_name("sharpmax")), "theory", "--help", cwd=folder)
        run(str(python.with_name("sharpmax")), "explore", "--output", "page.html", cwd=folder)
        print(f"{file.name}: installed and tried")  # noqa: T201


def empty_environment(folder: Path) -> Path:
    """Make an environment and return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "environment"))
    return folder / "environment/bin/python"


def pip(python: Path, *words: str) -> None:
    """Run pip for another interpreter."""
    options = ["--disable-pip-version-check", "--python", str(python)]
    run(sys.executable, "-m", "pip", *options, *words)


def run(*command: str, cwd: str | Path = ROOT) -> str:
    """Run a command outside of the clone's own package, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
