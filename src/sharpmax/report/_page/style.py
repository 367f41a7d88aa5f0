"""How figures look: colours that colour-blind readers tell apart, labels that do not collide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
GREEN: Final = "#009E73"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#767676"

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
    # The same measurement gives the same file, byte for byte.
    "svg.hashsalt": "sharpmax",
}
"""Settings of matplotlib for all figures, with the palette of Okabe and Ito above."""


def darkened(color: str, share: float = 0.3) -> str:
    """Mix a colour with black, for text: thin letters need more contrast than lines.

    Args:
        color: Six hexadecimal digits after a "#".
        share: How much black, from 0 to 1.

    Returns:
        The darker colour, in the same form.

    Example:
        >>> darkened("#E69F00", share=0.5)
        '#734f00'
    """
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{int(channel * (1 - share)):02x}" for channel in channels)


def spread_apart(positions: Sequence[float], distance: float) -> list[float]:
    """Move positions as little as it takes to keep them a distance apart, in the order they have.

    Labels at the ends of lines collide where lines do. Neighbours that are too close form a group
    that is laid out evenly around its own mean.

    Args:
        positions: Where the labels would stand.
        distance: The least distance between two of them.

    Returns:
        The new position of each.

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
    """Move positions apart as `spread_apart` does, and keep them between two ends.

    Args:
        positions: Where the labels would stand.
        distance: The least distance between two of them; less where there is no room for it.
        low: The lowest place for a label.
        high: The highest place for a label.

    Returns:
        The new position of each.

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


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure, without date or version, so that the same data give the same file.

    Args:
        figure: Of matplotlib.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).

    Returns:
        The path that was written; folders on the way to it are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        ".png": {"Software": None},
        ".svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
        ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    }
    figure.savefig(path, metadata=metadata.get(path.suffix.lower()))
    return path
