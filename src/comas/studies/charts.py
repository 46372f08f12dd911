"""Pictures of a study as SVG text: curves with bands over seeds, a panel per setting, and final
values with intervals.

The same numbers give the same bytes. Leaves out: which numbers (`studies.report`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from comas.stats import Interval, seeds_interval
from comas.studies.values import Curve

INK = "#0b6e4f"
GREY = "#888888"
POINTS = 40
"""Places of a curve at which its seeds are averaged."""
COLUMNS = 4
WIDTH = 190.0
HEIGHT = 120.0
"""Of a panel's axes."""
LEFT = 40.0
TOP = 24.0
GAP_X = 22.0
GAP_Y = 34.0
FOOT = 30.0
ROW = 20.0
"""Height of a line of final values."""
NAMES = 220.0
"""Width for the names of settings beside these."""
LETTERS = 32
"""Of a name, above a panel."""


@dataclass(frozen=True)
class Panel:
    """The curves of one setting, one per seed."""

    title: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Band:
    """Means over seeds with their 95 % intervals at some tokens."""

    xs: Sequence[float]
    found: Sequence[Interval]


def band_of(curves: Sequence[Curve]) -> Band | None:
    """Average curves as far as the shortest goes, values between points lying on a line."""
    if not curves:
        return None
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    if last < first:
        return None
    xs = np.linspace(first, last, POINTS)
    each = [np.interp(xs, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    found = [seeds_interval([float(values[i]) for values in each]) for i in range(POINTS)]
    return Band([float(x) for x in xs], found)


def panels(title: str, y_label: str, shown: Sequence[Panel], highest: float | None) -> str:
    """A panel per setting with the same axes; the mean of the first is repeated in grey.

    `highest` is the upper end of the values, None the greatest that there is.
    """
    columns = min(COLUMNS, max(1, len(shown)))
    rows = math.ceil(len(shown) / columns)
    points = [point for panel in shown for curve in panel.curves for point in curve]
    x_end = max((x for x, _ in points), default=1.0) or 1.0
    y_end = highest or max((y for _, y in points), default=1.0) or 1.0
    bands = [band_of(panel.curves) for panel in shown]
    parts: list[str] = []
    for i, panel in enumerate(shown):
        left = LEFT + (i % columns) * (WIDTH + GAP_X)
        top = TOP + (i // columns) * (HEIGHT + GAP_Y)
        axes = Axes(left, top, x_end, y_end)
        parts += axes.frame(panel.title, is_first=i % columns == 0)
        if i and bands[0] is not None:
            parts.append(axes.line(bands[0], GREY, 1.0))
        parts += axes.curves(panel.curves, bands[i])
    width = LEFT + columns * (WIDTH + GAP_X)
    height = TOP + rows * (HEIGHT + GAP_Y) + FOOT
    label = f"generated tokens, up to {_short(x_end)}; {y_label}"
    parts.append(_text(LEFT, height - 10, label, GREY))
    return _svg(title, width, height, parts)


@dataclass(frozen=True)
class Axes:
    """A panel's place, and the values at the ends of its axes."""

    left: float
    top: float
    x_end: float
    y_end: float

    def place(self, x: float, y: float) -> str:
        """Where a point is drawn."""
        across = self.left + WIDTH * x / self.x_end
        share = min(max(y / self.y_end, -0.02), 1.02)
        return f"{across:.1f},{self.top + HEIGHT * (1 - share):.1f}"

    def frame(self, title: str, is_first: bool) -> Iterator[str]:
        """Title, lines at quarters, and numbers beside the first panel of a row."""
        short = title if len(title) <= LETTERS else f"{title[: LETTERS - 1]}…"
        yield _text(self.left, self.top - 6, short, "#1b1b1b")
        for quarter in range(5):
            y = self.top + HEIGHT * (1 - quarter / 4)
            yield (
                f'<line x1="{self.left:.1f}" y1="{y:.1f}" x2="{self.left + WIDTH:.1f}"'
                f' y2="{y:.1f}" stroke="#dddddd" stroke-width="0.6"/>'
            )
            if is_first:
                number = _short(self.y_end * quarter / 4)
                yield _text(self.left - 6, y + 4, number, GREY, anchor="end")

    def curves(self, curves: Sequence[Curve], band: Band | None) -> Iterator[str]:
        """Every seed a thin line, their mean a thick one within its interval."""
        if band is None:
            yield _text(self.left + 8, self.top + HEIGHT / 2, "not measured", GREY)
            return
        if band.found[0].n > 1:
            upper = [self.place(x, i.high) for x, i in zip(band.xs, band.found, strict=True)]
            lower = [self.place(x, i.low) for x, i in zip(band.xs, band.found, strict=True)]
            outline = " ".join([*upper, *reversed(lower)])
            yield f'<polygon points="{outline}" fill="{INK}" opacity="0.15"/>'
        for curve in curves:
            yield _polyline([self.place(x, y) for x, y in curve], INK, 0.6, 0.5)
        yield self.line(band, INK, 2.0)

    def line(self, band: Band, colour: str, width: float) -> str:
        """The mean."""
        points = [self.place(x, i.mean) for x, i in zip(band.xs, band.found, strict=True)]
        return _polyline(points, colour, width, 1.0)


def finals(title: str, rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """A line per setting: its seeds as dots, their mean with its 95 % interval; from 0 to 1."""
    width = NAMES + 2 * WIDTH + 40
    height = TOP + ROW * len(rows) + FOOT
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _across(share)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP:.1f}" x2="{x:.1f}" y2="{height - FOOT:.1f}"'
            ' stroke="#dddddd" stroke-width="0.6"/>'
        )
        parts.append(_text(x, height - 14, _short(share), GREY, anchor="middle"))
    for i, (name, values) in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        short = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        parts.append(_text(NAMES - 10, y + 4, short, "#1b1b1b", anchor="end"))
        parts += _final(y, values)
    return _svg(title, width, height, parts)


def _final(y: float, values: Sequence[float]) -> Iterator[str]:
    for value in values:
        yield f'<circle cx="{_across(value):.1f}" cy="{y:.1f}" r="2" fill="{INK}" opacity="0.4"/>'
    if not values:
        yield _text(NAMES, y + 4, "not measured", GREY)
        return
    found = seeds_interval(values)
    if found.n > 1:
        ends = [_across(min(max(end, 0.0), 1.0)) for end in (found.low, found.high)]
        yield (
            f'<line x1="{ends[0]:.1f}" y1="{y:.1f}" x2="{ends[1]:.1f}" y2="{y:.1f}"'
            f' stroke="{INK}" stroke-width="1.6"/>'
        )
    yield f'<circle cx="{_across(found.mean):.1f}" cy="{y:.1f}" r="4" fill="{INK}"/>'


def _across(share: float) -> float:
    return NAMES + 2 * WIDTH * share


def _polyline(points: Sequence[str], colour: str, width: float, opacity: float) -> str:
    return (
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"'
        f' stroke-width="{width:.1f}" opacity="{opacity:.1f}"/>'
    )


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _short(number: float) -> str:
    """`0.25`, `600k`, `1.5M`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
            f' width="{width:.0f}" height="{height:.0f}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="11">',
            f"<title>{html.escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>",
        ]
    )
