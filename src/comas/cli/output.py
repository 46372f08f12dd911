"""Output of commands beside their tables: errors, notes and how to go on on stderr; with `--json`
one object on the last line of stdout, and nothing else there.

Whatever a message quotes, a terminal is not steered by it. Leaves out: what is shown to people
(`display`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from comas.config.schema import parse_pair
from comas.config.systems import is_run
from comas.hooks import Hook, Hooks
from comas.program import command
from comas.storage.records import strict
from comas.types import UserMistake


def _reserve(ctx: typer.Context, wanted: bool) -> bool:
    """With `--json`, stdout is for the object alone: whatever else is printed, by a user's method
    too, goes to stderr.
    """
    if wanted:
        ctx.obj = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return wanted


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_reserve,
        help="The last line of stdout is one JSON object (after an error none).",
    ),
]


def split(words: Sequence[str] | None) -> tuple[list[str], dict[str, Any]]:
    """The names among the words of a command, and the settings of its `key=value` pairs."""
    names = [word for word in words or () if is_name(word)]
    return names, settings_typed(word for word in words or () if word not in names)


def settings_typed(pairs: Iterable[str]) -> dict[str, Any]:
    """Dotted key -> value, of the `key=value` pairs of a command line. UserMistake where a key has
    two values; in Python the last one counts, as in other tables.
    """
    settings: dict[str, Any] = {}
    for key, value in map(parse_pair, pairs):
        if key in settings and settings[key] != value:
            both = f"{settings[key]!r} and {value!r}"
            raise UserMistake(f"{key} is given twice, {both}: leave one out")
        settings[key] = value
    return settings


def is_name(word: str) -> bool:
    """Whether a word of a command is a name and no `key=value` pair: runs, folders and files may
    have an equals sign in theirs.
    """
    return "=" not in word or is_run(word.split(",")[0]) or Path(word).exists()


def print_json(ctx: typer.Context, record: Any) -> None:
    """Print the object."""
    print(json.dumps(strict(record)), file=ctx.obj, flush=True)


def print_error(message: str) -> None:
    """Print a mistake on one line."""
    line = " ".join(_printable(message).split())
    print("error:", line, file=sys.stderr)


def print_note(text: str) -> None:
    """Print what somebody should know."""
    print("note:", _printable(text), file=sys.stderr)


def print_stopped(folder: Path | None, changes: Sequence[str] = ()) -> None:
    """Say how to go on with the run or evaluation in a folder, with the changes that were asked
    for; None where there is none yet.
    """
    if folder is None:
        print("stopped before the run began", file=sys.stderr)
        return
    words = shlex.join([str(folder), *changes])
    print(f"stopped; go on with: {command()} resume {words}", file=sys.stderr)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


class Outlet(Hooks):
    """Hands everything on to `watch` until its output is gone (a closed pipe, a lost connection);
    from then on it is silent, and the run stops in order: after the step, as for SIGTERM.
    """

    def __init__(self, watch: Hook) -> None:
        super().__init__([watch])
        self.gone = False
        self.asked = False
        """Whether the run has been asked to stop: not before it listens, which it does not while it
        loads.
        """

    def _tell(self, event: str, *details: Any) -> None:
        if self.hooks and not self.gone:
            try:
                getattr(self.hooks[0], event)(*details)
            except (OSError, SystemExit):  # rich leaves a closed pipe by SystemExit
                self.gone = True
            except Exception as error:  # noqa: BLE001 - who looks on never ends a run
                self.hooks.clear()
                print_note(f"nothing more is shown, since {event} failed: {error!r}")
        if self.gone and not self.asked and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            self.asked = True
            os.kill(os.getpid(), signal.SIGTERM)
