"""Style figures: colour-blind safe colours, common settings, titles, legends and labels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sharpmax._extras import require

BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
GREEN: Final = "#009E73"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#767676"

SOFT: Final = "#404040"
"""Colour of subtitles and notes."""

WIDTH: Final = 9.6
"""Usual width of a figure, in inches."""

SETTINGS: Final[dict[str, Any]] = {
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left",
    "axes.titlesize": 13, "axes.titleweight": "bold", "figure.dpi": 160,
    "font.family": "DejaVu Sans", "font.size": 10, "grid.color": "#E4E4E4", "grid.linewidth": 0.6,
    "savefig.facecolor": "white",
    # The same data give the same file, byte for byte.
    "svg.hashsalt": "sharpmax",
}  # fmt: skip
"""Matplotlib settings of all figures. The colours above are the palette of Okabe and Ito."""

_METADATA: Final[dict[str, dict[str, None]]] = {
    ".png": {"Software": None},
    ".svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Entries that matplotlib would fill with its version or the date."""


@dataclass(frozen=True)
class Series:
    """Hold how one series of a figure is named, drawn and explained."""

    label: str
    color: str
    marker: str = "o"
    line_style: Any = "solid"
    meaning: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """Colour, marker and line style, as matplotlib takes them."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.line_style}

    def handle(self, label: str | None = None, **style: Any) -> Any:
        """Return an entry for a legend; `style` are properties of `matplotlib.lines.Line2D`."""
        own = {"color": self.color, "linestyle": self.line_style, "linewidth": 1.8}
        label = literal(label or self.label)
        return _matplotlib(".lines").Line2D([], [], label=label, **{**own, **style})


def _matplotlib(module: str = "") -> Any:
    return require(f"matplotlib{module}", extra="report", what="drawing a figure")


@contextmanager
def new_figure(height: float, width: float = WIDTH) -> Iterator[Any]:
    """Open a figure, of a size in inches, in the common style; draw in it within the `with` block.

    The figure does not use pyplot, so it needs no window system and leaves no state.
    """
    with _matplotlib().rc_context(SETTINGS):
        yield _matplotlib(".figure").Figure(figsize=(width, height))


def literal(text: str) -> str:
    """Keep matplotlib from reading a text, such as the name of a model, as mathematics."""
    return " ".join(text.split()).replace("$", r"\$")


def write_title(figure: Any, title: str, subtitle: str = "") -> None:
    """Write a bold title at the top left of a figure, with an optional line below it."""
    title, subtitle, height = literal(title), literal(subtitle), figure.get_size_inches()[1]
    size = 13 if len(title) < 75 else 11.5
    figure.text(0.012, 1 - 0.26 / height, title, fontsize=size, fontweight="bold", va="center")
    if subtitle:
        figure.text(0.012, 1 - 0.54 / height, subtitle, fontsize=9.2, color=SOFT, va="center")


def write_legend(figure: Any, handles: Sequence[Any], top: float, columns: int = 7) -> None:
    """Write a legend without a frame, its centre `top` inches below the top of the figure."""
    figure.legend(
        handles=handles, loc="center left", ncols=columns, frameon=False, fontsize=9.2,
        bbox_to_anchor=(0.004, 1 - top / figure.get_size_inches()[1]),
        handlelength=1.6, columnspacing=1.4,
    )  # fmt: skip


def add_grid(axes: Any, axis: str = "both") -> None:
    """Draw a grid behind the data, and no minor ticks."""
    axes.minorticks_off()
    axes.grid(visible=True, axis=axis)
    axes.set_axisbelow(True)


def panels(figure: Any, number: int, columns: int, **options: Any) -> Any:
    """Return rows of axes with room for a number of panels; places that are left over are empty."""
    grid = figure.subplots(-(-number // columns), columns, squeeze=False, **options)
    for axes in grid.flat[number:]:
        axes.remove()
    return grid


def darkened(color: str, share: float = 0.3) -> str:
    """Mix a colour, such as "#E69F00", with a share of black: thin letters need more contrast."""
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{int(channel * (1 - share)):02x}" for channel in channels)


def render(figure: Any, suffix: str) -> bytes:
    """Render a figure as ".png", ".svg" or ".pdf"; the same data give the same bytes."""
    buffer = io.BytesIO()
    with _matplotlib().rc_context(SETTINGS):
        figure.savefig(buffer, format=suffix[1:], metadata=_METADATA.get(suffix))
    return buffer.getvalue()


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure to a file, whose suffix sets the format; missing folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(figure, path.suffix.lower()))
    return path


def save_all(figures: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Write figures as PNG files by name, and return their paths by name."""
    return {name: save(figure, folder / f"{name}.png") for name, figure in figures.items()}
