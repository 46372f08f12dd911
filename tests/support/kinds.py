"""Kinds of hosts in files, for tests that make the host themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

MAKERS: dict[str, Callable[[], Any]] = {}
"""File -> what its `build` returns."""
FILE = """from tests.support.kinds import MAKERS


def build(plan):
    return MAKERS[__file__]()
"""


def kind_of(make: Callable[[], Any], folder: Path, name: str = "kind") -> str:
    """Write a file in `folder` whose hosts are what `make` returns."""
    file = (folder / f"{name}.py").resolve()
    file.write_text(FILE)
    MAKERS[str(file)] = make
    return str(file)
