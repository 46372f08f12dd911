"""Documents that a page is built from: JSON objects by name, made from a run's or an evaluation's
folder when they are asked for.

Leaves out: how they reach the page (`server`, `page`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from comas.storage import files
from comas.storage.alarms import read_alarms
from comas.storage.game_log import logs_in
from comas.storage.records import lines, moved_in
from comas.storage.run import Run
from comas.types import UserMistake
from comas.view import discussion

PLAN = "evaluation.json"
"""File that an evaluation's folder has, and a run's has not."""
STEP_KEYS = (
    *("step", "rewards", "kl", "lengths", "cost", "counts", "replies", "signal", "pay"),
    *(
        "judges",
        "acceptance",
        "variety",
        "coverage",
        "posed",
        "notes",
        "tokens",
        "seconds",
        "validation",
    ),
    "validation_by_agent",
)
"""Keys of metrics.jsonl that the page draws."""
DIGITS = 12
"""Digits of a number in a document's name, at most."""
FILES = 4
"""Files of discussions whose records are kept in memory: those that were asked for last."""


def encoded(document: Any, digits: int | None = None) -> str:
    """A document as JSON, which knows no infinity and nothing that is not a number: they are null.

    Other numbers are rounded to so many significant `digits`, where a number of them is given.
    """
    return files.as_json(_plain(document, digits))


def _plain(value: Any, digits: int | None) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _plain(part, digits) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, digits) for part in value]
    return value


def _parts(name: str) -> list[str | int]:
    """The parts of a document's name; those that are numbers as numbers."""
    return [
        int(part) if part.isdecimal() and len(part) <= DIGITS else part for part in name.split("/")
    ]


def records(path: Path) -> Sequence[dict[str, Any]]:
    """The records of a JSON-lines file, which is read again where it has changed; none where there
    is no such file.
    """
    try:
        file_stat = path.stat()
    except FileNotFoundError:
        return ()
    return _read(path, file_stat.st_mtime_ns, file_stat.st_size)


@lru_cache(maxsize=FILES)
def _read(path: Path, time: int, size: int) -> Sequence[dict[str, Any]]:
    return tuple(lines(path))


class Growing:
    """The records of a JSON-lines file that is appended to, from several threads: each line is read
    once, unless the last of those that were read has changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begin_again()

    def _begin_again(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._end = 0
        """Bytes that were read."""
        self._last = b""

    def records(self) -> Sequence[dict[str, Any]]:
        """All records so far; none where there is no such file."""
        with self._lock:
            try:
                with self.path.open("rb") as log:
                    self._read_on(log)
            except FileNotFoundError:
                self._begin_again()
            return tuple(self._records)

    def _read_on(self, log: BinaryIO) -> None:
        log.seek(self._end - len(self._last))
        if log.read(len(self._last)) != self._last:  # an earlier step was taken again
            self._begin_again()
            log.seek(0)
        for row in log:
            if not row.endswith(b"\n"):  # it is still being written
                return
            try:
                self._records.append(files.object_in(row))
            except ValueError as error:
                number = len(self._records) + 1
                raise UserMistake(f"{self.path} line {number} is damaged: {error}") from error
            self._end += len(row)
            self._last = row


class RunDocuments:
    """A run.

    `run`: its facts. `steps/N`: figures of the steps from N on. `step/N`: rows of a step's
    discussions. `step/N/K`: one of them. `step/N/all`: all of them. `eval/NAME`: a measurement,
    with its answers.
    """

    def __init__(
        self,
        path: str,
        rewarded_for: Mapping[str, str] | None = None,
        learning: Sequence[str] = (),
    ) -> None:
        """`rewarded_for`: role -> words for what it is rewarded for; `learning`: the policies that
        learn, `host/policy`.
        """
        self.learning = learning
        self.run = Run.open(path)
        self.config = self.run.config()
        self.rewarded_for = dict(rewarded_for or {})
        self._steps = Growing(self.run.path / "metrics.jsonl")
        self._accuracies: dict[str, tuple[tuple[int, int], dict[str, Any] | None]] = {}
        """Measurement -> time and size of its file, and what it came to."""

    def read(self, name: str) -> Any:
        """The document of this name; KeyError where there is none."""
        match _parts(name):
            case ["run"]:
                return self._facts()
            case ["steps", int(first)]:
                return self._figures(first)
            case ["step", int(number)]:
                episodes = self._episodes(number)
                return [discussion.row(record, index) for index, record in enumerate(episodes)]
            case ["step", int(number), "all"]:
                return list(map(discussion.shown, self._episodes(number)))
            case ["step", int(number), int(index)] if index < len(self._episodes(number)):
                return discussion.shown(self._episodes(number)[index])
            case ["eval", str(stage)] if stage in self._measured():
                return self.run.read_eval(stage)
        raise KeyError(name)

    def _figures(self, first: int) -> list[dict[str, Any]]:
        """Collect the figures of the steps from `first` on."""
        trials: list[dict[str, Any]] = []
        for record in self._metrics()[first:]:
            figures = {key: record.get(key) for key in STEP_KEYS}
            evidence = _watched(record, "evidence")
            levels = [
                level for own in _watched(record, "needed").values() for level in own.values()
            ]
            figures["evidence"] = evidence
            figures["needed"] = levels[0] if levels else self._alarmed_at() if evidence else None
            trials.append(figures)
        return trials

    def _alarmed_at(self) -> float | None:
        """The evidence that made an alarm in a run whose steps do not say what is needed; in powers
        of ten.
        """
        alarms = read_alarms(self.run.path)
        return math.log10(alarms[0]["needed"]) if alarms else None

    def steps(self) -> int:
        """How many there are so far."""
        return len(self._metrics())

    def _metrics(self) -> Sequence[dict[str, Any]]:
        return self._steps.records()

    def _facts(self) -> dict[str, Any]:
        return {
            "kind": "run",
            "name": self.run.path.name,
            "config": self.config,
            "steps": self.steps(),
            "planned": self.config["steps"],
            "moved": moved_in(self._metrics(), self.learning),
            "rewarded_for": self.rewarded_for,
            "kinds": discussion.KINDS,
            "measured": {name: self._accuracy(name) for name in self._measured()},
        }

    def _measured(self) -> list[str]:
        folder = self.run.path / "eval"
        names = {path.stem for path in folder.glob("*.json")}
        names.discard("overlap")
        return sorted(names, key=_place)

    def _accuracy(self, name: str) -> dict[str, Any] | None:
        """Read a measurement: its step, and mean, low, high and n; None where its file is
        damaged.
        """
        try:
            stat = (self.run.path / "eval" / f"{name}.json").stat()
        except FileNotFoundError:  # it was there a moment ago
            return None
        written = (stat.st_mtime_ns, stat.st_size)
        if self._accuracies.get(name, (None,))[0] != written:
            record = self.run.read_eval(name)
            kept = record and {"step": record["step"], "accuracy": record["accuracy"]}
            self._accuracies[name] = (written, kept)
        return self._accuracies[name][1]

    def _episodes(self, step: int) -> Sequence[dict[str, Any]]:
        return records(self.run.path / "episodes" / f"{step:06d}.jsonl")


def _watched(record: Mapping[str, Any], key: str) -> dict[str, dict[str, float]]:
    """Monitor -> hypothesis -> a figure of a step's line, where it has that."""
    levels: dict[str, dict[str, float]] = {}
    for monitor, hypotheses in record.get("monitors", {}).items():
        levels[monitor] = {name: own[key] for name, own in hypotheses.items() if key in own}
    return levels


def _place(name: str) -> tuple[int, str]:
    """`before` comes first, `after` last."""
    order = {"before": 0, "after": 2}
    return order.get(name, 1), name


class EvaluationDocuments:
    """An evaluation.

    `run`: its plan and its report. `games/N`: rows of the games of one file of answers.
    `games/N/K`: one of them. `games/N/all`: all of them.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._logs = list(logs_in(self.path / "answers"))

    def read(self, name: str) -> Any:
        """The document of this name; KeyError where there is none."""
        match _parts(name):
            case ["run"]:
                return self._facts()
            case ["games", int(number), *rest] if number < len(self._logs):
                # of a game that was played again, the last one
                by_id = {game["id"]: game for game in records(self._logs[number]) if "id" in game}
                games = list(by_id.values())
                match rest:
                    case []:
                        return [discussion.row(game, index) for index, game in enumerate(games)]
                    case ["all"]:
                        return list(map(discussion.shown, games))
                    case [int(index)] if index < len(games):
                        return discussion.shown(games[index])
                    case _:
                        pass
        raise KeyError(name)

    def logs(self) -> int:
        """How many files of answers there are."""
        return len(self._logs)

    def _facts(self) -> dict[str, Any]:
        return {
            "kind": "evaluation",
            "name": self.path.name,
            "config": files.read_object(self.path / PLAN),
            "report": files.read_object(self.path / "report.json"),
            "files": [log.stem for log in self._logs],
            "kinds": discussion.KINDS,
            "rewarded_for": {},
        }


class Several:
    """Documents of several folders: the name begins with the folder's number, from 0; `folders` is
    how many there are.
    """

    def __init__(self, folders: Iterable[RunDocuments | EvaluationDocuments]) -> None:
        self.folders = list(folders)

    def read(self, name: str) -> Any:
        """The document of this name; KeyError where there is none."""
        if name == "folders":
            return len(self.folders)
        number, _, rest = name.partition("/")
        places = {str(index): folder for index, folder in enumerate(self.folders)}
        return places[number].read(rest)


def is_evaluation(path: str) -> bool:
    """Whether a folder is an evaluation's."""
    return (Path(path) / PLAN).is_file()
