"""Where a run is written: a folder of its own, which nobody else needs.

Leaves out: what is written there (`storage.run`).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from comas.program import command
from comas.types import UserMistake

UNFINISHED = {"episodes": set[str](), "checkpoints": {"new"}, "eval": {"overlap.json"}}
"""Folders of a run, with what is in them before anything is paid."""


def check_free(out: str) -> None:
    """An error where a run cannot begin in the folder `out`: it is no folder, or something is in it
    that may be needed.

    A run that died before it came to anything (no measurement, no step, nothing paid) is not
    needed: another may take its place.
    """
    if not out.strip():
        raise UserMistake("out is empty: name a folder, or leave it out for runs/<time>-<method>")
    path = Path(out)
    try:
        path.resolve()
    except (OSError, RuntimeError) as error:
        raise UserMistake(f"out={out}: a link that leads to itself; choose another") from error
    above = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not above.is_dir():
        raise UserMistake(f"out={out}: Not a directory: {above} is a file; choose another")
    if (path / "evaluation.json").exists():
        raise UserMistake(f"out={out}: there is an evaluation in this folder; choose another")
    if not (stranger := _stranger(path)):
        return
    if (path / "config.toml").exists():
        going_on = f"`{command()} resume {shlex.quote(out)}`"
        raise UserMistake(
            f"out={out}: there is a run already; continue it with {going_on}, choose another, or"
            " delete it"
        )
    raise UserMistake(
        f"out={out}: this folder is no run and not empty ({stranger} is in it); choose another"
    )


def _stranger(folder: Path) -> str | None:
    """The name of something in a folder that a run which died before it came to anything did not
    leave there.
    """
    log = folder / "metrics.jsonl"
    mine = {".lock", "metrics.jsonl", "config.toml.new"}
    if log.is_file():  # without one, what is called config.toml may be anybody's
        mine |= {"config.toml", "processes.json"}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in UNFINISHED and path.is_dir():
            inside = {file.name for file in path.iterdir()}
            if inside - UNFINISHED[path.name]:
                return path.name
        elif path.name not in mine:
            return path.name
    return log.name if log.is_file() and log.stat().st_size else None


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
