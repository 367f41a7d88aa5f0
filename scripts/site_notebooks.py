"""Write a notebook as a page of the site, with the outputs that are kept in it."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat


def write_page(notebook: Path, page: Path) -> str:
    """Write the pictures of a notebook beside its page, and return the text of the page.

    Raises:
        LookupError: a cell has not been run, or a picture has no text in place of it: the entry
            "alt" in the metadata of its cell.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    title, _, first = cells[0].source.partition("\n")
    parts = [f"{title}\n\n[Download this notebook]({notebook.name}).\n{first}"]
    for cell in cells[1:]:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        if cell.execution_count is None:
            raise LookupError(f"{notebook.name}, {cell.id}: not run; `make notebooks` runs it")
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.outputs):
            picture = output.get("data", {}).get("image/png")
            if picture is None:
                text = output.get("text") or output.get("data", {}).get("text/plain", "")
                parts.append(f"``` {{ .text .no-copy .output }}\n{text.rstrip()}\n```")
                continue
            if "alt" not in cell.metadata:
                raise LookupError(f'{notebook.name}, {cell.id}: its metadata has no "alt"')
            file = page.with_name(f"{page.stem}-{cell.id}-{number}.png")
            file.write_bytes(base64.b64decode(picture))
            parts.append(f"![{cell.metadata['alt']}]({file.name})")
    return "\n\n".join(parts) + "\n"
