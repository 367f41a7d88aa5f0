"""Place labels at the ends of lines: as close to the ends as possible, without overlap."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["spread_apart", "spread_between"]


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
