"""The run that is meant where none is named, the command by which this program was called, and how
to go on with what it works on.

Leaves out: opening runs (`storage.run`).
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from comas.types import UserMistake

VERSION = "0.2.0"
RUNS = Path("runs")


@dataclass
class Work:
    """The run or evaluation that is worked on: how to go on with it stands in messages."""

    folder: Path | None = None
    """None until there is one."""

    def going_on(self, pair: str = "") -> str:
        """The command that goes on, where there is something to go on with."""
        if self.folder is None:
            return ""
        return f" and go on: {command()} resume {shlex.quote(str(self.folder))} {pair}".rstrip()


def latest_run() -> Path | None:
    """The run in `runs` that was worked on last; None where there is none."""
    return next(iter(runs_by_time()), None)


def runs_by_time() -> list[Path]:
    """The runs in `runs`, the one that was worked on last first."""
    runs = [file.parent for file in RUNS.glob("*/config.toml")]
    return sorted(runs, key=touched, reverse=True)


def named_or_latest(name: str | None) -> str:
    """The name, or the latest run, which is named on stderr."""
    if name is not None:
        return name
    if (run := latest_run()) is None:
        raise UserMistake(
            f"there is no run in the folder runs: name one, or begin one with {command()} train"
        )
    print(f"{run} (the latest run)", file=sys.stderr)
    return str(run)


def touched(run: Path) -> float:
    """When something was last written there, in seconds."""
    files = [
        run / name for name in ("config.toml", "metrics.jsonl", "commit.json", "processes.json")
    ]
    return max(file.stat().st_mtime for file in files if file.exists())


def command() -> str:
    """`comas` as it can be called from here: its path where it is not found on PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m comas"
    if called.stem != "comas" or shutil.which("comas") is not None:
        return "comas"
    return shlex.quote(str(called))
