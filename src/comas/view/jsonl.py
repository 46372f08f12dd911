"""Records of a JSON-lines file by number: where each line begins is found once, and only the lines
that are asked for are read.

Leaves out: what the records mean.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from comas.types import UserMistake


class JsonLines:
    """A file that may still grow; a last line without its end is no record yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts: list[int] = []
        self._end = 0
        """Behind the last line that is whole."""
        self._last = b""
        """That line."""
        self.restarts = 0
        """How often it was found to be another file than before: the run was gone on with."""
        self._looking = threading.Lock()
        """Held while lines are found: every request is served by a thread of its own."""

    def __len__(self) -> int:
        self._look()
        return len(self._starts)

    def record(self, number: int) -> dict[str, Any]:
        """The record at `number`, from 0; IndexError where there is none."""
        self._look()
        start = self._starts[number]
        following = self._starts[number + 1 : number + 2] or [self._end]
        with self.path.open("rb") as file:
            file.seek(start)
            line = file.read(following[0] - start)
        return self._parsed(line, number)

    def records(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """All records from `first` on."""
        self._look()
        if first >= len(self._starts):
            return
        with self.path.open("rb") as file:
            file.seek(self._starts[first])
            for number in range(first, len(self._starts)):
                yield self._parsed(file.readline(), number)

    def _look(self) -> None:
        """Find the lines that were added; start over where the file was cut, also where it has
        grown again since: its last known line does not stand where it did.
        """
        with self._looking:
            try:
                with self.path.open("rb") as file:
                    self._find(file)
            except FileNotFoundError:
                self._forget()

    def _find(self, file: BinaryIO) -> None:
        file.seek(self._end - len(self._last))
        if file.read(len(self._last)) != self._last:
            self._forget()
            file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._starts.append(self._end)
            self._end += len(line)
            self._last = line

    def _forget(self) -> None:
        if self._starts:
            self.restarts += 1
        self._starts = []
        self._end = 0
        self._last = b""

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            return json.loads(line)
        except ValueError as error:
            raise UserMistake(f"{self.path} line {number + 1} is damaged: {error}") from error
