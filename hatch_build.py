"""Put a compiled library of the CPU kernels into a wheel, and absolute links into the description.

`scripts/build_wheel.py` gives the library by two variables of the environment: SHARPMAX_LIBRARY,
its path, and SHARPMAX_PLATFORM, the platform that it runs on as wheels name it. Without them the
wheel is for every platform, and the kernels are compiled on first use.

SHARPMAX_REPOSITORY is the address of the repository, such as https://github.com/OWNER/sharpmax. A
package index shows README.md without the files around it, so links and pictures need it. Without
it, links become text and pictures the words in place of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(
    r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\n)*)\]\((?!https?:|#)(?P<file>[^)\s]+)\)"
)


class Library(BuildHookInterface[Any]):
    """Add the library and name the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = os.environ.get("SHARPMAX_LIBRARY")
        if library and version == "standard":
            build_data["force_include"][library] = "sharpmax/kernels/libsharpmax.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['SHARPMAX_PLATFORM']}"


class Description(MetadataHookInterface):
    """Fill in the description, and the address of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("SHARPMAX_REPOSITORY", "").rstrip("/")
        # The files of this release, not those of a later day.
        base = f"{repository}/{{}}/v{metadata['version']}/{{}}" if repository else ""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, base)}
        metadata["urls"] = {"Repository": repository} if repository else {}


def described(text: str, base: str) -> str:
    """Return a README with absolute links.

    Args:
        text: the README.
        base: the address of a file, with places for "blob" or "raw" and for its path; empty if the
            repository has none.
    """

    def link(match: re.Match[str]) -> str:
        if not base:
            return f"*{match['text']}*" if match["picture"] else match["text"]
        address = base.format("raw" if match["picture"] else "blob", match["file"])
        return f"{match['picture']}[{match['text']}]({address})"

    return _LINK.sub(link, text)
