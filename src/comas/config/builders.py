"""Engines and kinds of hosts by name or file: `hf` is `comas.engines.hf`, `./mine.py` that file.

Leaves out: what they build (`engines`, `hosts`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.plugin_file import import_file
from comas.types import UserMistake

PACKAGE = Path(__file__).parents[1]
BUILD = "\ndef build("
CALLS = {"engines": "build(plan, models)", "hosts": "build(plan)"}
"""Folder -> how what is found there is called."""


def builder_names(folder: str) -> list[str]:
    """The modules that are shipped: files and folders of `folder` that define `build`."""
    files = {path.stem: path for path in (PACKAGE / folder).glob("*.py")}
    files |= {path.parent.name: path for path in (PACKAGE / folder).glob("*/__init__.py")}
    return sorted(n for n, path in files.items() if BUILD in path.read_text(encoding="utf-8"))


def check_builder_name(folder: str, name: str, key: str) -> None:
    """An error where nothing is called so; nothing is imported."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UserMistake(f"{key} = {name!r}: no such file")
        return
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
    if not callable(getattr(module, "build", None)):
        raise UserMistake(f"{key} = {name!r}: the file defines no `{CALLS[folder]}`")
    return module
