"""Engines, kinds of hosts, trackers, monitors and tools by name or file: `hf` is
`comas.engines.hf`, `./mine.py` that file.

Leaves out: what they make (`engines`, `hosts`, `trackers`, `monitors`, `tools`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from comas.config import former
from comas.config.mistakes import nearest
from comas.config.plugin_file import import_file
from comas.types import UserMistake

PACKAGE = Path(__file__).parents[1]
CALLS = {
    "engines": "build(plan, models)",
    "hosts": "build(plan)",
    "trackers": "open(run)",
    "monitors": "watch()",
    "tools": "make()",
    "transports": "start(call, heard, ended)",
}
"""Folder -> how what is found there is called."""


def builder_names(folder: str) -> list[str]:
    """The modules that are shipped: files and folders of `folder` that define what is called."""
    files = {path.stem: path for path in (PACKAGE / folder).glob("*.py")}
    files |= {path.parent.name: path for path in (PACKAGE / folder).glob("*/__init__.py")}
    definition = f"\ndef {_function(folder)}("
    return sorted(n for n, path in files.items() if definition in path.read_text(encoding="utf-8"))


def check_builder_name(folder: str, name: str, key: str) -> None:
    """An error where nothing is called so; nothing is imported."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UserMistake(f"{key} = {name!r}: no such file")
        return
    if folder == "monitors" and name in former.MONITORS:
        raise UserMistake(
            f"{key} = {name!r}: it saw no collapse in time and is gone: leave it out"
            " (docs/monitors.md)"
        )
    known = builder_names(folder)
    if name not in known:
        raise UserMistake(f"{key} = {name!r}: {nearest(name, known)} (or ./file.py)")


def load_builder(folder: str, name: str, key: str) -> Any:
    """The module of this name; `key` is the config key that names it, for error messages."""
    check_builder_name(folder, name, key)
    module: Any
    if name.endswith(".py"):
        module = import_file(name, f"{key} =")
    else:
        module = importlib.import_module(f"comas.{folder}.{name}")
    if not callable(getattr(module, _function(folder), None)):
        raise UserMistake(f"{key} = {name!r}: the file defines no `{CALLS[folder]}`")
    return module


def _function(folder: str) -> str:
    """The name of the function that is called."""
    return CALLS[folder].partition("(")[0]


def check_trackers(names: Iterable[str]) -> None:
    """An error for what is no tracker, or misses its package; nothing is imported."""
    for name in names:
        _check_tracker(name)


def _check_tracker(name: str) -> None:
    """A shipped tracker, its package and the extra that brings it have one name."""
    check_builder_name("trackers", name, "track")
    if name.endswith(".py"):
        return
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise UserMistake(
            f'track = {name!r} needs a package that is not installed: pip install "comas[{name}]",'
            " or leave it out of track"
        ) from error
