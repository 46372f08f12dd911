"""The figures of a run as trackers want them: a name with slashes -> a finite number.

A dozen names first, which say how a team learns; all other numbers of the record below `detail/`.
Leaves out: texts, and numbers that are null or not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Figures = dict[str, float]
Path = tuple[str, ...]
"""The parts of a name."""

FIRST: dict[Path, str] = {
    ("validation", "mean"): "accuracy/validation",
    ("pay", "accuracy"): "accuracy/training",
    ("pay", "precision"): "pay/precision",
    ("pay", "recall"): "pay/recall",
    ("rewards",): "reward",
    ("kl",): "kl",
    ("tokens",): "tokens",
    ("seconds",): "seconds",
}
"""A number in a line of metrics.jsonl, or all below a key, -> what it is called here."""
SHARES = {
    "share/unreadable": ("replies", "unreadable", "turns"),
    "share/cut": ("replies", "cut", "turns"),
    "share/flat": ("signal", "flat", "groups"),
}
"""What teaches nothing: name -> the table that counts it, how often, and of how many."""


def of_step(line: Mapping[str, Any]) -> Figures:
    """Return the figures of a line of metrics.jsonl, those with names of their own first."""
    figures: Figures = {}
    details: Figures = {}
    for path, number in _numbers(line):
        if path in FIRST:
            figures[FIRST[path]] = number
        elif path[:1] in FIRST:
            figures["/".join((FIRST[path[:1]], *path[1:]))] = number
        elif path != ("step",):
            details["/".join(("detail", *path))] = number
    for name, (table, part, whole) in SHARES.items():
        rows = line.get(table)
        rows = list(rows.values()) if isinstance(rows, Mapping) else rows
        counted = [
            (row[part], row[whole])
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, Mapping)
            and isinstance(row.get(part), int | float)  # null is where nobody knows
            and isinstance(row.get(whole), int | float)
        ]
        if total := sum(count for _, count in counted):
            figures[name] = sum(count for count, _ in counted) / total
    return {**figures, **details}


def of_measurement(name: str, accuracy: Mapping[str, Any]) -> Figures:
    """Return the figures of an accuracy `before` or `after` the run: `mean low high n`."""
    figures: Figures = {}
    for (part,), number in _numbers(accuracy):
        key = f"accuracy/{name}" if part == "mean" else f"detail/accuracy/{name}/{part}"
        figures[key] = number
    return figures


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as one table with dotted keys; lists as texts."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{below}": part for below, part in of_config(value).items()}
        else:
            flat[key] = str(value) if isinstance(value, list) else value
    return flat


def _numbers(value: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Yield every finite number of a record with its path; truth counts as 0 and 1. Rows of tables
    are named by their texts and their round, or by their place.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, (*path, str(key)))
    elif isinstance(value, list):
        for place, row in enumerate(value):
            if not isinstance(row, Mapping):
                yield from _numbers(row, (*path, str(place)))
                continue
            labels = [key for key, part in row.items() if isinstance(part, str) or key == "round"]
            names = [str(row[key]) for key in labels] or [str(place)]
            rest = {key: part for key, part in row.items() if key not in labels}
            yield from _numbers(rest, (*path, *names))
    elif isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond what a float can hold
            return
        if math.isfinite(number):
            yield path, number
