"""A run's curves in characters: accuracy and reward of each role over its steps.

Leaves out: colours, other figures (`comas view`, trackers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from comas.display.curves import Points, curve

HEIGHT = 2
"""Lines of a curve."""
LABEL = 24
"""Columns of its name, and of its scale behind it."""
WIDEST = 100
"""Columns of a line at most: further ones show nothing more."""
ACCURACIES = {"validation": "mean", "pay": "accuracy"}
"""Metric -> its key that is an accuracy."""
TITLES = {"validation": "accuracy, validation", "pay": "accuracy, training"}


def curve_lines(metrics: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """A curve for each figure that at least two steps have, with its lowest and highest value."""
    series = {name: points for name, points in _series(metrics).items() if len(points) > 1}
    if not series:
        return
    yield f"over {len(metrics)} steps:"
    columns = max(8, min(width, WIDEST) - LABEL - 10)
    for name, points in series.items():
        values = [value for _, value in points]
        low = min(values)
        high = max(values)
        lines = curve(points, columns, HEIGHT, low, high if high > low else low + 1)
        for place, line in enumerate(lines):
            title = name if place == 0 else ""
            value = high if place == 0 else low
            yield f"  {title:{LABEL}s} {value:6.3f} {line}"


def _series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Name -> (steps that lie behind, value), accuracies first."""
    series: dict[str, list[tuple[float, float]]] = {title: [] for title in TITLES.values()}
    for line in metrics:
        step = line["step"] + 1
        for metric, key in ACCURACIES.items():
            value = (line.get(metric) or {}).get(key)
            if value is not None:
                series[TITLES[metric]].append((step, value))
        for role, reward in line.get("rewards", {}).items():
            points = series.setdefault(f"reward, {role}", [])
            points.append((step, reward))
    return dict(series)
