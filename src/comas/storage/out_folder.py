"""Where a run is written: a folder of its own, which nobody else needs.

Leaves out: what is written there (`storage.run`).
"""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from comas.program import command
from comas.types import UserMistake

BEGUN = ("episodes", "checkpoints", "eval", "metrics.jsonl", "answers")
"""Folders and files that runs and evaluations make, empty, before they are one."""


def check_free(out: str, key: str = "out=") -> None:
    """An error where a run or an evaluation cannot begin in the folder that `key` names: it is no
    folder, or there is something else in it than what a process has left that died before it had
    one.
    """
    if not out.strip():
        raise UserMistake("out is empty: name a folder, or leave it out for runs/<time>-<method>")
    path = Path(out)
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserMistake(f"{key}{out}: a link that leads to itself; choose another") from error
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not above.is_dir():
        raise UserMistake(f"{key}{out}: Not a directory: {above} is a file; choose another")
    inside = sorted(path.iterdir()) if path.is_dir() else []
    strangers = [file.name for file in inside if not _left_behind(file)]
    kinds = {"config.toml": "a run", "evaluation.json": "an evaluation"}
    if kind := next((kinds[name] for name in strangers if name in kinds), None):
        going_on = f"`{command()} resume {shlex.quote(out)}`"
        raise UserMistake(
            f"{key}{out}: there is {kind} already; continue it with {going_on}, choose another, or"
            " delete it"
        )
    if strangers:
        raise UserMistake(
            f"{key}{out}: this folder is no run and not empty ({strangers[0]} is in it); choose"
            " another"
        )


def _left_behind(path: Path) -> bool:
    """Whether a process that died at the beginning has left this."""
    if path.name in (".lock", "config.toml.new", "evaluation.json.new"):
        return True
    if path.name not in BEGUN:
        return False
    return not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0


def fresh(stem: Path) -> Path:
    """A new folder of that name, or of that name and a number where another process was faster."""
    numbered = [stem.with_name(f"{stem.name}-{number}") for number in range(1, 1000)]
    for path in (stem, *numbered):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserMistake(
                f"{path}: {error.strerror}; choose another place with out="
            ) from error
        return path
    raise UserMistake(f"{stem} to {stem}-999 are taken: choose another place with out=")
