"""Curves in characters: a line of dots over steps, and a line of bars.

Leaves out: scales that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: four rows of two dots."""

Points = Sequence[tuple[float, float]]
"""Places on the x axis, in ascending order, and values."""


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The last `width` values as bars between `low` and `high`."""
    shown = values[-width:] if width > 0 else []
    heights = [round(_share(value, low, high) * (len(BARS) - 1)) for value in shown]
    return "".join(BARS[height] for height in heights)


def curve(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """Draw a line through the points on `width` x `height` characters, of 2 x 4 dots each; all of
    the x axis is shown.
    """
    columns = 2 * width
    rows = 4 * height
    cells = [[0] * width for _ in range(height)]
    before: int | None = None
    for column, value in _sampled(points, columns):
        row = round((1 - _share(value, low, high)) * (rows - 1))
        if before is None or before == row:
            drawn = range(row, row + 1)
        elif row < before:
            drawn = range(row, before)
        else:
            drawn = range(before + 1, row + 1)
        for dot in drawn:
            bit = DOTS[dot % 4][column % 2]
            cells[dot // 4][column // 2] |= bit
        before = row
    return ["".join(chr(0x2800 + bits) for bits in line) for line in cells]


def _sampled(points: Points, columns: int) -> list[tuple[int, float]]:
    """The value at every column from the first point on, between two points on the line that joins
    them.
    """
    if not points:
        return []
    if len(points) == 1:
        return [(0, points[0][1])]
    start = points[0][0]
    step = (points[-1][0] - start) / (columns - 1)
    sampled: list[tuple[int, float]] = []
    place = 0
    for column in range(columns):
        x = start + column * step
        while place < len(points) - 2 and points[place + 1][0] < x:
            place += 1
        x0, y0 = points[place]
        x1, y1 = points[place + 1]
        share = _share(x, x0, x1) if x1 > x0 else 1.0
        sampled.append((column, y0 + share * (y1 - y0)))
    return sampled


def _share(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))
