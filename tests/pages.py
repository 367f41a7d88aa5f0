"""Read HTML pages: check that they are well formed and fetch nothing, and collect their text."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Check that every tag is closed in order, and keep tags and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def assert_nothing_is_fetched(html: str, reader: Reader) -> None:
    assert not reader.all("script")
    assert not reader.all("link")
    assert "@import" not in html
    assert "url(" not in html
    for _, attributes in reader.tags:
        for name in ("src", "href", "srcset", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    for image in reader.all("img"):
        _, data = (image["src"] or "").split(";base64,")
        assert not re.search(rb"(?:href|src)=\"https?:", base64.b64decode(data))
