"""Engines by name or file: `hf` is `comas.engines.hf`, `./mine.py` that file.

Leaves out: building one (`hosts.build`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.plugin_file import import_file
from comas.engines.module import EngineModule
from comas.types import UserMistake

FOLDER = Path(__file__).parents[1] / "engines"
BUILD = "\ndef build("


def engine_names() -> list[str]:
    """The engines that are shipped: files and folders of `comas.engines` that define `build`."""
    files = {path.stem: path for path in FOLDER.glob("*.py")}
    files |= {path.parent.name: path for path in FOLDER.glob("*/__init__.py")}
    return sorted(n for n, path in files.items() if BUILD in path.read_text(encoding="utf-8"))


def check_engine_name(name: str, key: str) -> None:
    """An error where no engine is called so; nothing is imported."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UserMistake(f"{key} = {name!r}: no such file")
        return
    known = engine_names()
    if name not in known:
        raise UserMistake(f"{key} = {name!r}: {nearest(name, known)} (or ./file.py)")


def load_engine(name: str, key: str) -> EngineModule:
    """The module of this engine; `key` is the config key that names it, for error messages."""
    check_engine_name(name, key)
    module: Any
    if name.endswith(".py"):
        module = import_file(name, f"{key} =")
    else:
        module = importlib.import_module(f"comas.engines.{name}")
    if not callable(getattr(module, "build", None)):
        raise UserMistake(f"{key} = {name!r}: the file defines no `build(plan, models)`")
    return module
