"""Run the notebooks of docs/notebooks, and keep their outputs in them.

    python scripts/run_notebooks.py [NAME …]
    python scripts/run_notebooks.py --output FOLDER [NAME …]    # keeps them elsewhere

The site shows them as they are kept. A test runs them again and compares what they print.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "docs/notebooks"
SECONDS = 300
ENVIRONMENT = {
    # The tests choose a backend without pictures, which a kernel would inherit.
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    # Widgets for progress bars are not installed, nor needed.
    "PYTHONWARNINGS": "ignore:IProgress not found",
    "HF_HUB_OFFLINE": "1",
}


def run(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder, and return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
        ValueError: a cell warned. What frameworks log besides is left out.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        kernel = AsyncKernelManager(transport="ipc", ip=f"{folder}/kernel")
        client = NotebookClient(
            notebook, kernel, timeout=SECONDS, startup_timeout=SECONDS, resources=place,
            record_timing=False, coalesce_streams=True,
        )  # fmt: skip
        client.execute(env={**os.environ, **ENVIRONMENT})
    for cell in filter(lambda cell: cell.cell_type == "code", notebook.cells):
        for output in cell.outputs:
            if output.get("name") == "stderr" and "Warning:" in output.text:
                raise ValueError(f"{path.name}, {cell.id}: expected no warnings, got {output.text}")
        cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[path.stem for path in FOLDER.glob("*.ipynb")])
    parser.add_argument("--output", type=Path, default=FOLDER)
    given = parser.parse_args()
    for name in given.names:
        nbformat.write(run(FOLDER / f"{name}.ipynb"), given.output / f"{name}.ipynb")
