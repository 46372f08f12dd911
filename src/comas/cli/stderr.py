"""Lines on stderr: errors, notes, and how to go on with what was stopped.

Whatever a message quotes, a terminal is not steered by it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from comas.program import command


def print_error(message: str) -> None:
    """Print a mistake on one line."""
    line = " ".join(_printable(message).split())
    print("error:", line, file=sys.stderr)


def print_note(text: str) -> None:
    """Print what somebody should know."""
    print("note:", _printable(text), file=sys.stderr)


def print_stopped(folder: Path | None) -> None:
    """Say how to go on with the run or evaluation in a folder; None where there is none yet."""
    if folder is None:
        print("stopped before the run began", file=sys.stderr)
        return
    name = shlex.quote(str(folder))
    print(f"stopped; go on with: {command()} resume {name}", file=sys.stderr)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
