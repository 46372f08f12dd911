"""Questions from files and from the hub: one loader for both, since local files have the hub's
columns.

A task names its data set, its file and its columns; `path=` or the folder in the environment
variable COMAS_DATA come before the hub. Parts of a file are cut by a hash of each question's text,
so that they never overlap whatever is added. Leaves out: what the columns mean (tasks).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.types import Question, UserMistake

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Where the rows of a task come from."""

    task: str
    hub: str | None
    """Its id there; None: files only."""
    config: str | None
    splits: Mapping[str, str]
    """Our split -> the hub's; a task may cut one into several."""
    columns: tuple[str, ...]
    """Those that must be there, and be text."""
    values: tuple[str, ...] = ()
    """Those that must be there, as text or as a number."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our split -> the file's name, where it is not `<task>_<hub split>.jsonl`."""

    def questions(
        self,
        make: Callable[[Row, str], Question],
        split: str,
        path: str | None,
        limit: int | None,
        seed: int,
        keep: Callable[[Question], bool] = lambda q: True,
    ) -> list[Question]:
        """Build the questions of a split with `make(row, place)`, each text once.

        The order is drawn by `seed`; at most `limit` are returned, and a smaller limit gives the
        first ones of a larger.
        """
        found = {q.id: q for q in (make(row, where) for row, where in self.rows(split, path))}
        chosen = [q for q in found.values() if keep(q)]
        if found and not chosen:
            place = path or os.environ.get("COMAS_DATA") or self.hub
            raise UserMistake(
                f"task {self.task}: none of the {len(found)} questions of {place} falls into its"
                f" {split} cut, which a hash of each question's text makes: take more questions, or"
                " a folder with a file per split where the task reads one"
            )
        random.Random(f"{self.task} {split} {seed}").shuffle(chosen)
        return chosen[:limit]

    def rows(self, split: str, path: str | None) -> Iterator[tuple[Row, str]]:
        """Rows of a split, each with where it stands. Raises UserMistake."""
        if split not in self.splits:
            known = ", ".join(self.splits)
            reason = "; it is for evaluation only" if set(self.splits) == {"test"} else ""
            raise UserMistake(f"task {self.task} has no split {split!r}: one of {known}{reason}")
        place = path or os.environ.get("COMAS_DATA")
        if place and not path and not Path(place).exists():
            raise UserMistake(
                f"COMAS_DATA is {place}: there is no such folder; correct the variable, or unset it"
                " to read the hub"
            )
        file = self._file(Path(place), split) if place else None
        if file is None or (path is None and self.hub and not file.exists()):
            yield from self._checked(self._hub_rows(split), f"{self.hub} row ")
        else:
            yield from self._checked(_lines(file, self.task), f"{file}:")

    def _file(self, place: Path, split: str) -> Path:
        return (
            place / self.files.get(split, f"{self.task}_{self.splits[split]}.jsonl")
            if place.is_dir()
            else place
        )

    def _checked(self, rows: Iterable[tuple[int, Any]], where: str) -> Iterator[tuple[Row, str]]:
        for at, row in rows:
            whole = isinstance(row, Mapping) and all(
                isinstance(row.get(c), str) for c in self.columns
            )
            if not whole or not all(isinstance(row.get(c), str | int | float) for c in self.values):
                names = ", ".join(f"`{c}`" for c in self.columns + self.values)
                raise UserMistake(
                    f"{where}{at}: expected an object with the texts {names}, got {str(row)[:60]}"
                )
            if any(re.search("[\ud800-\udfff]", row[c]) for c in self.columns):
                raise UserMistake(
                    f"{where}{at}: half a character (a lone surrogate) stands in one of its texts"
                )
            yield row, f"{where}{at}"

    def _hub_rows(self, split: str) -> Iterator[tuple[int, Any]]:
        local = (
            f"set COMAS_DATA to a folder with {self._file(Path('.'), split).name}, or data (in"
            " eval: --data) to the file"
        )
        if self.hub is None:
            raise UserMistake(f"task {self.task} reads a file: {local}")
        try:
            import datasets
        except ImportError as error:
            raise UserMistake(
                f"task {self.task} reads the hub with `datasets`, which is not installed: pip"
                f' install "comas[hub]", or {local}'
            ) from error
        try:
            found: Any = datasets.load_dataset(
                *filter(None, (self.hub, self.config)), split=self.splits[split]
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserMistake(
                f"task {self.task} cannot get {self.hub} from the hub ({type(error).__name__}): go"
                f" online, or {local}"
            ) from error
        yield from enumerate(found)


def _lines(file: Path, task: str) -> Iterator[tuple[int, Any]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserMistake(
            f"task {task} cannot read {file} ({reason}): set data=FILE or COMAS_DATA, or unset both"
        ) from error
    for at, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield at, json.loads(line)
            except json.JSONDecodeError as error:
                raise UserMistake(f"{file}:{at} is not JSON: {error}") from error


def identity(task: str, prompt: str) -> str:
    """A question's id: by its text, whatever file it stands in."""
    return f"{task}-{hashlib.sha256(prompt.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def place(task: str, prompt: str) -> float:
    """Where in [0, 1) a question falls, by its text alone: the parts of a file are cut there."""
    digest = hashlib.sha256(f"{task} {prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def cut(task: str, split: str, shares: Sequence[tuple[str, float]]) -> Callable[[Question], bool]:
    """Whether a question belongs to `split`, for a file that is cut into parts (name, share) by the
    questions' texts.
    """
    low = 0.0
    for name, share in shares:
        if name == split:
            high = low + share if name != shares[-1][0] else 1.0
            return lambda q, low=low: low <= place(task, q.prompt) < high
        low += share
    raise UserMistake(
        f"task {task} has no split {split!r}: one of {', '.join(name for name, _ in shares)}"
    )
