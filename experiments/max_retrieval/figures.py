"""All figures of the max-retrieval experiment, from its results and the data of its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.max_retrieval.accuracy_figure import draw_accuracy
from experiments.max_retrieval.attention_maps import draw_attention
from experiments.max_retrieval.temperature_figures import draw_entropy_plane, draw_fit

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Table

__all__ = ["draw_accuracy", "draw_all", "draw_attention", "draw_entropy_plane", "draw_fit"]


def draw_all(
    table: Table,
    figures: dict[str, Any] | None,
    folder: str | Path,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw every figure that the data allow.

    Args:
        table: The results.
        figures: Data of the figures; None without any.
        folder: Where to write.
        say: Called with a sentence for each figure that is skipped: which one, and why.

    Returns:
        The files that were written.

    Raises:
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from experiments.max_retrieval.records import Table
        >>> with TemporaryDirectory() as folder:
        ...     [path.name for path in draw_all(Table("", (), {}, ()), None, folder)]
        ['entropy-plane.png']
    """
    folder = Path(folder)
    data = figures or {}
    methods = list(data.get("attention", {}).get("methods", ()))
    written = []

    def draw(name: str, missing: str | None, make: Callable[[Path], Path]) -> None:
        if missing is not None:
            say(f"{name} is left out: {missing}.")
        else:
            written.append(make(folder / name))

    for group in ("inference", "trained", "beyond"):
        there = any(True for _ in table.select(group=group))
        draw(
            f"accuracy-{group}.svg",
            None if there else f"the results have no group {group!r}",
            lambda path, group=group: draw_accuracy(table, path, group),  # type: ignore[misc]
        )
    draw(
        "attention-softmax.png",
        None if "softmax" in methods else "there are no attention maps of softmax",
        lambda path: draw_attention(data, path, ["softmax"]),
    )
    draw(
        "attention-compared.png",
        None if len(methods) > 1 else "there are no attention maps of several methods",
        lambda path: draw_attention(data, path),
    )
    draw(
        "fit.svg",
        None if data.get("fit", {}).get("entropy") else "there are no points of the fit",
        lambda path: draw_fit(data, path),
    )
    draw("entropy-plane.png", None, draw_entropy_plane)
    return written
