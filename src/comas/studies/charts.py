"""Pictures of a study, drawn by matplotlib (extra `plot`): curves with bands over seeds, a panel
per setting, and final values with intervals.

Leaves out: which numbers (`studies.report`).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comas.stats import Interval, seeds_interval
from comas.studies.values import Curve

INK = "#0b6e4f"
GREY = "#888888"
POINTS = 40
"""Places of a curve at which its seeds are averaged."""
COLUMNS = 4
LETTERS = 32
"""Of a name, above a panel."""
RC: Any = {"svg.hashsalt": "comas", "text.parse_math": False, "font.size": 8}
"""The same numbers give the same bytes, and no name is read as a formula."""


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


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


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


def panels(path: Path, y_label: str, shown: Sequence[Panel], highest: float | None) -> None:
    """Draw a panel per setting with the same axes: every seed a thin line, their mean a thick one
    within its interval, the mean of the first setting again in grey.

    `highest` is the upper end of the values, None the greatest that there is.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(COLUMNS, max(1, len(shown)))
    rows = math.ceil(len(shown) / columns)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(0.6 + 2.4 * columns, 0.4 + 1.8 * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        bands = [band_of(panel.curves) for panel in shown]
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for panel, band, axes in zip(shown, bands, grid.flat, strict=False):
            axes.set_title(_short(panel.title), loc="left", fontsize=8)
            axes.grid(axis="y", linewidth=0.4)
            if band is None:
                axes.text(0.1, 0.5, "not measured", color=GREY, transform=axes.transAxes)
                continue
            if band is not bands[0] and bands[0] is not None:
                axes.plot(bands[0].xs, [i.mean for i in bands[0].found], GREY, linewidth=1)
            if band.found[0].n > 1:
                low, high = ([getattr(i, end) for i in band.found] for end in ("low", "high"))
                axes.fill_between(band.xs, low, high, color=INK, alpha=0.15, linewidth=0)
            for curve in panel.curves:
                axes.plot(*zip(*curve, strict=True), color=INK, alpha=0.5, linewidth=0.6)
            axes.plot(band.xs, [i.mean for i in band.found], INK, linewidth=2)
        grid[0, 0].set_ylim(0, highest)
        figure.supxlabel("generated tokens", fontsize=8)
        figure.supylabel(y_label, fontsize=8)
        figure.savefig(path, metadata={"Date": None})


def finals(path: Path, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Draw a line per setting: its seeds as dots, their mean with its 95 % interval; from 0 to
    1.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        figure = Figure(figsize=(7, 0.6 + 0.25 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for y, (_, values) in enumerate(rows):
            if not values:
                axes.text(0, y, "not measured", color=GREY, verticalalignment="center")
                continue
            found = seeds_interval(values)
            axes.plot(values, [y] * len(values), "o", color=INK, alpha=0.4, markersize=3)
            if found.n > 1:
                axes.hlines(y, found.low, found.high, color=INK, linewidth=1.6)
            axes.plot([found.mean], [y], "o", color=INK, markersize=6)
        axes.set_yticks(range(len(rows)), [_short(name) for name, _ in rows])
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", linewidth=0.4)
        figure.savefig(path, metadata={"Date": None})


def _short(title: str) -> str:
    return title if len(title) <= LETTERS else f"{title[: LETTERS - 1]}…"
