"""The settings of a study file: their keys over those of `[config]`, and grids multiplied out.

Leaves out: what the keys mean (`studies.settings`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from comas.studies.file import StudyFile
from comas.types import UserMistake

Keys = dict[str, Any]
"""Dotted keys of a config with their values; a table without keys is a value."""
OURS = {
    "seed": "seeds",
    "out": "out, the study's own",
    "tokens": "tokens, the budget of all settings",
    "steps": "steps, the budget of all settings",
}
"""Keys of a run that a study sets -> what sets them."""


@dataclass(frozen=True)
class Described:
    """A setting as the file has it."""

    name: str
    keys: Keys
    """With those of `[config]`."""
    trained: bool


def described(study: StudyFile) -> list[Described]:
    """All settings in the order of the file, grids multiplied out."""
    common = flat(study.config)
    _check_ours("config", common)
    found: list[Described] = []
    for name, table in study.settings.items():
        found += _settings_of(name, dict(table), common)
    names: dict[str, str] = {}
    for setting in found:
        folder = slug(setting.name)
        if folder in names:
            raise UserMistake(
                f"settings: {names[folder]!r} and {setting.name!r} would have one folder,"
                f" {folder}: rename one"
            )
        names[folder] = setting.name
    return found


def _settings_of(name: str, table: Keys, common: Keys) -> Iterator[Described]:
    place = f"settings.{name}"
    trained = table.pop("train", True)
    if not isinstance(trained, bool):
        raise UserMistake(f"{place}: train = {trained!r}: true or false")
    is_grid = "grid" in table
    grid = table.pop("grid", None)
    own = flat(table)
    _check_ours(place, own)
    if not is_grid:
        yield Described(name, merged(common, own), trained)
        return
    axes = _axes(place, grid)
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        parts = [f"{key}={spelt(value)}" for key, value in point.items()]
        keys = merged(merged(common, own), flat(point))
        yield Described(" ".join([name, *parts]), keys, trained)


def _axes(place: str, grid: Any) -> dict[str, list[Any]]:
    """Dotted key -> its values."""
    axes = flat(grid) if isinstance(grid, Mapping) else {}
    if not axes:
        raise UserMistake(f"{place}.grid is empty: give it keys with lists of values")
    _check_ours(f"{place}.grid", axes)
    for key, values in axes.items():
        if not isinstance(values, list):
            raise UserMistake(f"{place}.grid: {key} = {values!r}: a list of values is wanted")
        if not values:
            raise UserMistake(f"{place}.grid: {key} has no values, so that the grid is empty")
    return axes


def _check_ours(place: str, keys: Keys) -> None:
    for key in keys:
        if key in OURS:
            raise UserMistake(f"{place}: {key} is set for all settings alike, by {OURS[key]}")


def flat(table: Mapping[str, Any], above: str = "") -> Keys:
    """Tables within tables as dotted keys."""
    found: Keys = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def nested(keys: Keys) -> dict[str, Any]:
    """Dotted keys as tables within tables."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        table = found
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserMistake(f"{key}: {part} is {table!r}, not a table")
        table[last] = value
    return found


def merged(common: Keys, own: Keys) -> Keys:
    """Own keys over common ones: a value takes the place of a table, and a table that of a
    value.
    """
    kept = {key: value for key, value in common.items() if not _replaced(key, own)}
    return {**kept, **own}


def _replaced(key: str, own: Keys) -> bool:
    return any(
        key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in own
    )


def spelt(value: Any) -> str:
    """A value as a part of a name."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def slug(name: str) -> str:
    """The name of a setting's folder: without what has a meaning on the command line."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "setting"
