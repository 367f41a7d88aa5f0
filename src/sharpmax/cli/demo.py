"""`sharpmax demo`: watch a bounded row disperse, and see what each policy does about it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sharpmax.lab.dispersion import Dispersion

__all__ = ["demo"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the picture and the figures behind it.")
    ] = Path("build/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random rows.")] = 0,
) -> None:
    """Show how the largest coefficient of a bounded row falls with its length, under each policy.

    Lengths go from 16 to 1,048,576. Writes dispersion.png (with the extra "lab") and
    dispersion.json to OUTPUT.
    """
    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from sharpmax._extras import MissingExtra
    from sharpmax._version import __version__
    from sharpmax.lab.dispersion import measure_dispersion
    from sharpmax.report.dispersion import draw_dispersion

    console = Console()
    # Before the work, so that a folder that cannot be written is not found out after it.
    output.mkdir(parents=True, exist_ok=True)
    with console.status("Measuring rows of up to 1,048,576 logits"):
        measured = measure_dispersion(seed=seed)
    _print_table(console, measured)

    figures = output / "dispersion.json"
    result = {"sharpmax": __version__, **measured.to_dict()}
    figures.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"Figures: {figures}", soft_wrap=True, highlight=False)
    try:
        picture = draw_dispersion(measured, output / "dispersion.png")
    except MissingExtra as missing:
        console.print(f"No picture: {missing}", soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(f"Picture: {picture}", soft_wrap=True, highlight=False)


def _print_table(console: Console, measured: Dispersion) -> None:
    from rich import box
    from rich.table import Table

    shown = range(0, len(measured.sizes), 4)
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Largest softmax coefficient of a bounded row of n items",
        title_justify="left",
        title_style="bold",
        caption=f"{measured.description} The bounds are those of Lemma 2.1 for plain softmax.",
        caption_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("n =", no_wrap=True)
    for index in shown:
        table.add_column(f"{measured.sizes[index]:,}", justify="right", no_wrap=True)
    draws_blocks = "utf" in console.encoding.lower()
    if draws_blocks:
        table.add_column("16 … 1,048,576", no_wrap=True)

    def add(name: str, values: Sequence[float], style: str = "") -> None:
        cells = [_readable(values[index]) for index in shown]
        table.add_row(name, *cells, *([_sparkline(values)] if draws_blocks else []), style=style)

    add("upper bound", [min(1.0, value) for value in measured.bounds.upper], "dim")
    for curve in measured.curves:
        add(curve.name, curve.largest, "bold" if curve is measured.curves[0] else "")
    add("lower bound", measured.bounds.lower, "dim")
    console.print(table)


def _readable(coefficient: float) -> str:
    if coefficient >= 0.0095:
        return f"{coefficient:.3f}"
    # One digit is enough for these exponents, and the table has to fit into 80 columns.
    return f"{coefficient:.1e}".replace("e-0", "e-")


def _sparkline(values: Sequence[float], lowest: float = 1e-6) -> str:
    """A bar a value, from the lowest to 1 on a logarithmic scale."""
    shares = (1 - math.log(max(value, lowest)) / math.log(lowest) for value in values)
    return "".join(_BLOCKS[round(share * (len(_BLOCKS) - 1))] for share in shares)
