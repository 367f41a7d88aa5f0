"""Style figures: colour-blind safe colours, common settings, titles, legends and labels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
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
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "figure.dpi": 160,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "savefig.facecolor": "white",
    # The same data give the same file, byte for byte.
    "svg.hashsalt": "sharpmax",
}
"""Matplotlib settings of all figures. The colours above are the palette of Okabe and Ito."""

_METADATA: Final[dict[str, dict[str, None]]] = {
    ".png": {"Software": None},
    ".svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Entries that matplotlib would fill with its version or the date."""


@dataclass(frozen=True)
class Series:
    """Describe how one series of a figure is named and drawn.

    Attributes:
        label: Its name.
        color: Colour of its lines and points.
        marker: Marker of its points.
        line_style: Line style, as matplotlib takes it.
        meaning: One sentence that explains it.
    """

    label: str
    color: str
    marker: str = "o"
    line_style: Any = "solid"
    meaning: str = ""

    def handle(self, label: str | None = None, **style: Any) -> Any:
        """Return an entry for a legend.

        Args:
            label: Text of the entry; None takes the name of the series.
            **style: Properties of `matplotlib.lines.Line2D`; they override those of the series.
        """
        lines = require("matplotlib.lines", extra="report", what="drawing a figure")
        own = {"color": self.color, "linestyle": self.line_style, "linewidth": 1.8}
        return lines.Line2D([], [], label=label or self.label, **{**own, **style})


@contextmanager
def new_figure(height: float, width: float = WIDTH) -> Iterator[Any]:
    """Open a figure in the common style; draw in it within the `with` block.

    The figure does not use pyplot, so it needs no window system and leaves no state.

    Args:
        height: Height in inches.
        width: Width in inches.

    Yields:
        A `matplotlib.figure.Figure`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    module = require("matplotlib.figure", extra="report", what="drawing a figure")
    with matplotlib.rc_context(SETTINGS):
        yield module.Figure(figsize=(width, height))


def write_title(figure: Any, title: str, subtitle: str = "") -> None:
    """Write a bold title at the top left of a figure, with an optional line below it."""
    height = figure.get_size_inches()[1]
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


def darkened(color: str, share: float = 0.3) -> str:
    """Mix a colour with black: thin letters need more contrast than lines.

    Args:
        color: Six hexadecimal digits after a "#".
        share: Share of black, from 0 to 1.

    Returns:
        The darker colour, in the same form.

    Example:
        >>> darkened("#E69F00", share=0.5)
        '#734f00'
    """
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{int(channel * (1 - share)):02x}" for channel in channels)


def spread_apart(positions: Sequence[float], distance: float) -> list[float]:
    """Move positions as little as needed to keep a minimum distance; their order stays the same.

    Use it for labels at the ends of lines. Neighbours that are too close form a group, which is
    spaced evenly around its own mean.

    Args:
        positions: Preferred positions of the labels.
        distance: Minimum distance between two labels.

    Returns:
        The new positions.

    Example:
        >>> spread_apart([0.0, 0.1, 5.0], distance=1.0)
        [-0.45, 0.55, 5.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[list[int]] = []

    def span(group: list[int]) -> tuple[float, float]:
        centre = sum(positions[index] for index in group) / len(group)
        half = distance * (len(group) - 1) / 2
        return centre - half, centre + half

    for index in order:
        groups.append([index])
        while len(groups) > 1 and span(groups[-2])[1] + distance > span(groups[-1])[0]:
            last = groups.pop()
            groups[-1] += last
    result = list(positions)
    for group in groups:
        start, _ = span(group)
        for place, index in enumerate(group):
            result[index] = start + place * distance
    return result


def spread_between(
    positions: Sequence[float], distance: float, low: float, high: float
) -> list[float]:
    """Move positions apart as `spread_apart` does, and keep them between two limits.

    Args:
        positions: Preferred positions of the labels.
        distance: Minimum distance between two labels; less if there is no room.
        low: Lowest position.
        high: Highest position.

    Returns:
        The new positions.

    Example:
        >>> spread_between([0.9, 1.0, 1.0], distance=0.2, low=0.0, high=1.0)
        [0.6, 0.8, 1.0]
    """
    if len(positions) > 1:
        distance = min(distance, (high - low) / (len(positions) - 1))
    moved = spread_apart(positions, distance)
    order = sorted(range(len(moved)), key=lambda index: moved[index])
    for place, index in enumerate(order):
        moved[index] = max(moved[index], low + place * distance)
    for place, index in enumerate(reversed(order)):
        moved[index] = min(moved[index], high - place * distance)
    return [round(position, 9) for position in moved]


def render(figure: Any, suffix: str) -> bytes:
    """Render a figure without date or version, so that the same data give the same bytes.

    Args:
        figure: A figure of matplotlib.
        suffix: The format: ".png", ".svg" or ".pdf".

    Returns:
        The content of the file.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format=suffix[1:], metadata=_METADATA.get(suffix))
    return buffer.getvalue()


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure; the same data give the same file.

    Args:
        figure: A figure of matplotlib.
        path: The file. Its suffix sets the format (.png, .svg, .pdf); missing folders are created.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(figure, path.suffix.lower()))
    return path
