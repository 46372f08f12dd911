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


def of_step(line: Mapping[str, Any]) -> Figures:
    """The figures of a line of metrics.jsonl, those with names of their own first."""
    figures: Figures = {}
    details: Figures = {}
    for path, number in _numbers(line):
        name = _first_name(path)
        if name is not None:
            figures[name] = number
        elif path != ("step",):
            details["/".join(("detail", *path))] = number
    return {**figures, **_shares(line), **details}


def of_measurement(name: str, record: Mapping[str, Any]) -> Figures:
    """Accuracy `before` or `after` the run, from its record in eval/; empty where nothing could be
    judged.
    """
    interval = dict(record["accuracy"] or {})
    figures: Figures = {}
    for (part,), number in _numbers(interval):
        key = f"accuracy/{name}" if part == "mean" else f"detail/accuracy/{name}/{part}"
        figures[key] = number
    return figures


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as one table with dotted keys; lists as texts."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{below}": part for below, part in of_config(value).items()}
        else:
            flat[key] = str(value) if isinstance(value, list) else value
    return flat


def _first_name(path: Path) -> str | None:
    """What a number is called that has a name of its own."""
    if path in FIRST:
        return FIRST[path]
    group = FIRST.get(path[:1])
    return "/".join((group, *path[1:])) if group else None


def _numbers(value: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Every finite number of a record with its path; truth counts as 0 and 1."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, (*path, str(key)))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _of_row(part, place, path)
    elif isinstance(value, int | float) and _is_finite(value):
        yield path, float(value)


def _of_row(row: Any, place: int, path: Path) -> Iterator[tuple[Path, float]]:
    """The numbers of a row of a table, which is named by its texts and its round, or by its
    place.
    """
    if not isinstance(row, Mapping):
        yield from _numbers(row, (*path, str(place)))
        return
    labels = {key: part for key, part in row.items() if isinstance(part, str) or key == "round"}
    names = [str(label) for label in labels.values()] or [str(place)]
    for key, part in row.items():
        if key not in labels:
            yield from _numbers(part, (*path, *names, str(key)))


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond what a float can hold
        return False


SHARES = {
    "share/unreadable": ("replies", "unreadable", "turns"),
    "share/cut": ("replies", "cut", "turns"),
    "share/flat": ("signal", "flat", "groups"),
}
"""What teaches nothing: name -> the table that counts it, how often, and of how many."""


def _shares(line: Mapping[str, Any]) -> Figures:
    """Shares of replies that cannot be read or were cut, and of groups whose rewards are all
    equal; of rows that know it.
    """
    shares: Figures = {}
    for name, (table, part, whole) in SHARES.items():
        rows = [row for row in _rows(line.get(table)) if _counts(row, part) and _counts(row, whole)]
        total = sum(row[whole] for row in rows)
        if total:
            shares[name] = sum(row[part] for row in rows) / total
    return shares


def _rows(table: Any) -> list[Mapping[str, Any]]:
    """The rows of a table that is a list, or has a row per name."""
    values = list(table.values()) if isinstance(table, Mapping) else table
    rows = values if isinstance(values, list) else []
    return [row for row in rows if isinstance(row, Mapping)]


def _counts(row: Mapping[str, Any], key: str) -> bool:
    """Whether there is a number; null is where nobody knows."""
    return isinstance(row.get(key), int | float)
