"""Runs, models and teams that lie nearby, for messages about a name that leads nowhere.

Leaves out: what a name means (`models.sources`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

MARKS = ("config.toml", "config.json", "team.toml")
"""Files that make a folder a run, a model or a team."""


def resembling(name: str, known: Iterable[str] = ()) -> str:
    """Suggest `; did you mean runs/a?` where a run or model in this folder or in `runs`, or one of
    the `known` names, has nearly this name; otherwise empty.
    """
    candidates = {word: word for word in known}
    for folder in (Path(), Path("runs"), Path(name).parent):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if any((path / mark).is_file() for mark in MARKS):
                candidates |= {path.name: str(path), str(path): str(path)}
    close = difflib.get_close_matches(name, candidates, 1)
    close = close or difflib.get_close_matches(Path(name).name, candidates, 1)
    if not close or candidates[close[0]] == name:
        return ""
    return f"; did you mean {candidates[close[0]]}?"
