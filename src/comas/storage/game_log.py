"""The games of one run in one cell of an evaluation, as a file that survives whatever stops it.

Leaves out: which games there are (`evaluation.runner`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from comas.storage import files
from comas.storage.records import line
from comas.types import UserMistake, Verdict

SAID = ("prompt", "text", "thoughts")
"""Keys of turns that figures do not need: nearly all of a record."""


def logs_in(folder: Path) -> Iterator[Path]:
    """The logs among the files of a folder; what others put there (`copy of ...`, `.DS_Store`) is
    left alone.
    """
    for path in sorted(folder.glob("*.jsonl")):
        if re.search(r"\.[0-9a-f]{8}\.jsonl$", path.name):
            yield path


@dataclass
class Log:
    """The games of one run in one cell: a line each; the last line of a game counts."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Id of a game -> its record; without what was said (`SAID`), but for games that are still to
    be judged.
    """
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the last process that worked on it."""

    def __post_init__(self) -> None:
        complete = 0
        with self.path.open("rb") if self.path.exists() else nullcontext(()) as rows:
            for number, row in enumerate(rows, 1):
                if not row.endswith(b"\n"):  # the process died while it wrote
                    files.truncate(self.path, complete)
                    break
                complete += len(row)
                if row.strip():
                    self._take(self._read(row, number))

    def _read(self, row: bytes, number: int) -> dict[str, Any]:
        try:
            record = files.object_in(row.decode("utf-8"))
            _check(record)
        except (ValueError, KeyError, TypeError) as error:
            raise UserMistake(
                f"{self.path} line {number} is damaged ({error!r}): remove it to have it played"
                " again"
            ) from error
        return record

    def _take(self, record: dict[str, Any]) -> None:
        if "sitting" in record:
            self.facts = record["sitting"]
            self.seconds += self.facts["seconds"]
        else:
            self.found[record["id"]] = record if record["verdict"] == "failed" else _brief(record)

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """The records of games in the order of their ids, whichever ended first."""
        return [self.found[game] for game in sorted(self.found)]

    def add(self, record: dict[str, Any]) -> None:
        """One more line; the system writes it to the disk in its own time, which
        `close` waits for.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            files.append(self.path, line(record))
        except OSError:  # a full disk: half a line would damage the next one
            with suppress(OSError):
                files.truncate(self.path, size)
            raise
        self._take(record)

    def close(self, **facts: Any) -> None:
        """One process's work on it is done."""
        self.add({"sitting": facts})
        files.sync(self.path)


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what was said."""
    turns = [
        {key: value for key, value in turn.items() if key not in SAID}
        for turn in record.get("turns", ())
    ]
    return {**record, "turns": turns}


def _check(record: dict[str, Any]) -> None:
    """Raise where a record is neither of a process's work nor of a game."""
    if "sitting" in record:
        return
    if record["verdict"] not in get_args(Verdict) or not record["id"]:
        raise ValueError("it is no game's record")
