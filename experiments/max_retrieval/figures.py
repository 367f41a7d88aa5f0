"""Draw the figures and the report of max retrieval from its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.max_retrieval.accuracy_figure import draw_accuracy
from experiments.max_retrieval.attention_maps import draw_attention
from experiments.max_retrieval.measure import load_figures
from experiments.max_retrieval.records import Table
from experiments.max_retrieval.temperature_figures import draw_entropy_plane, draw_fit

__all__ = ["draw_all", "figures"]


def figures(results: Path) -> list[Path]:
    """Draw every figure that the results allow, and write `report.html`, all into their folder.

    Args:
        results: A folder with `table.json` and perhaps `figures.json`.

    Returns:
        The files that were written.
    """
    from experiments.max_retrieval.page import write_page

    table = Table.load(results / "table.json")
    measured = results / "figures.json"
    data = load_figures(measured) if measured.exists() else None
    drawn = draw_all(table, data, results)
    if table.main_recipe is not None:
        drawn.append(write_page(results / "report.html", table, data))
    return drawn


def draw_all(table: Table, data: dict[str, Any] | None, folder: Path) -> list[Path]:
    """Draw every figure that the data allow.

    Args:
        table: The results.
        data: Data of the figures, if there are any.
        folder: Folder of the figures.

    Returns:
        The files that were written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     [path.name for path in draw_all(Table("", (), {}, ()), None, Path(folder))]
        ['entropy-plane.png']
    """
    data = data or {}
    methods = data.get("attention", {}).get("methods", ())
    makers: dict[str, tuple[bool, Callable[[Path], Path]]] = {
        f"accuracy-{group}.svg": (
            any(True for _ in table.select(group=group)),
            lambda path, group=group: draw_accuracy(table, path, group),
        )
        for group in ("inference", "trained", "beyond")
    } | {
        "attention-softmax.png": (
            "softmax" in methods,
            lambda path: draw_attention(data, path, ["softmax"]),
        ),
        "attention-compared.png": (len(methods) > 1, lambda path: draw_attention(data, path)),
        "fit.svg": (
            bool(data.get("fit", {}).get("entropy")),
            lambda path: draw_fit(data, path),
        ),
        "entropy-plane.png": (True, draw_entropy_plane),
    }
    return [draw(folder / name) for name, (possible, draw) in makers.items() if possible]
