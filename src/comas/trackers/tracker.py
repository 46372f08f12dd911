"""The hook that feeds one tracker: the steps that it lacks when a run begins or goes on, then each
step as it is written, alarms, and the accuracies before and after.

What was sent is noted in `track/<tracker>.json` of the run: what `comas resume` drops and plays
again is not sent again. Leaves out: which figures (`figures`), how libraries take them (a file
each).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comas.hooks import Hook
from comas.program import command
from comas.storage import files
from comas.storage.alarms import read_alarms
from comas.storage.records import line
from comas.storage.run import Run
from comas.trackers.figures import Figures, of_config, of_measurement, of_step
from comas.trackers.sink import Sink, Tracked
from comas.types import Episode, UserMistake

if TYPE_CHECKING:
    from comas.stats import Interval
    from comas.team.build import Team

STEP = "tokens"
"""The mark of steps: a figure that each of them has."""
ALARMS = "alarms"
"""The mark of alarms; as a figure of each step that was watched, how many there were so far."""


class Tracker(Hook):
    """One tracker's share of one run; it is told of what fails in it, and is left alone then."""

    def __init__(self, name: str, open_sink: Callable[[Tracked], Sink]) -> None:
        self.name = name
        self.open_sink = open_sink
        self.sink = Sink()
        self.sent: dict[str, int] = {}
        """Mark -> the newest number that the tracker has."""
        self.count = 0
        """Measurements that this process has sent."""
        self.failed: str | None = None
        self.tell: Callable[[str], None] = lambda text: None
        """Told of a failure."""

    def begin(self, run: Run, team: Team | None, start: int) -> None:
        """Open the sink, and send what it lacks of what lies before step `start`."""
        self.run = run
        self._guard(lambda: self._catch_up(start))

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self._guard(lambda: self._step(json.loads(line(metrics))))

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        if name != "validation" and found is not None:  # which is a figure of its step
            figures = of_measurement(name, found._asdict())
            self._guard(lambda: self._send(f"accuracy/{name}", step, figures))

    def ended(self, result: Any) -> None:
        self._guard(self.sink.close)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do what may fail: it ends this tracker's work in this process, and nothing else."""
        if self.failed is not None:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what libraries say of themselves
                work()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is told in a line
            known = isinstance(error, UserMistake)
            self.failed = str(error) if known else f"{type(error).__name__}: {error}"
            rest = f"{command()} track {shlex.quote(str(self.run.path))} {self.name}"
            self.tell(
                f"track {Path(self.name).name} failed ({self.failed}); the run goes on;"
                f" `{rest}` sends what is left"
            )

    def _catch_up(self, start: int) -> None:
        folder = self.run.path / "track" / Path(self.name).name
        folder.mkdir(parents=True, exist_ok=True)
        self.record = folder.with_name(f"{folder.name}.json")
        try:
            note = files.read_object(self.record)
            self.id = uuid.uuid4().hex if note is None else note["id"]
            self.sent = {} if note is None else dict(note["sent"])
        except (UserMistake, KeyError, TypeError, ValueError) as error:
            raise UserMistake(
                f"{self.record} is damaged; remove it to send everything anew"
            ) from error
        if note is not None:
            self._check_tracker(note)
            if self._is_copied(note):
                self.id, self.sent = uuid.uuid4().hex, {}
        self._write_note()  # before the store hears of the id
        config = of_config(self.run.config())
        name = self.run.path.resolve().name
        sent = max(0, self.sent.get(STEP, 0))
        self.sink = self.open_sink(Tracked(name, self.id, config, folder, sent))
        if self.sink.newest is not None:
            self.sent[STEP] = self.sink.newest
        self._accuracy("before", 0)
        for metrics in itertools.islice(self.run.metrics(), start):
            self._step(metrics)
        self._accuracy("after", start)

    def _is_copied(self, note: Mapping[str, Any]) -> bool:
        """Whether the note is of another run that this one was copied from; a run that was moved
        has left no such note behind.
        """
        first = Path(note.get("run", self.run.path))
        if first.resolve() == self.run.path.resolve():
            return False
        try:
            other = files.read_object(first / "track" / self.record.name)
        except (UserMistake, OSError):
            return False
        return isinstance(other, dict) and other.get("id") == note["id"]

    def _check_tracker(self, note: Mapping[str, Any]) -> None:
        """Raise UserMistake where the note is of another file of the same name."""
        noted = note.get("tracker", self._place())
        if noted != self._place() and Path(noted).is_file():
            raise UserMistake(
                f"another tracker of this name, {noted}, has sent this run: rename one of them"
            )

    def _place(self) -> str:
        """The tracker's name, of a file its path from anywhere."""
        return str(Path(self.name).resolve()) if Path(self.name).is_file() else self.name

    def _accuracy(self, name: str, step: int) -> None:
        """Send that measurement, where it has been made of the team after this step."""
        record = self.run.read_eval(name, note=lambda _: None)
        if record is not None and record["step"] == step and record["accuracy"]:
            self._send(f"accuracy/{name}", step, of_measurement(name, record["accuracy"]))

    def _step(self, metrics: Mapping[str, Any]) -> None:
        number = metrics["step"] + 1
        figures = of_step(metrics)
        alarms = [alarm for alarm in read_alarms(self.run.path) if alarm["step"] < number]
        if metrics.get("monitors"):
            figures[ALARMS] = float(len(alarms))
        self._send(STEP, number, figures)
        told = self.sent.get(ALARMS, -1)
        for alarm in alarms:
            if alarm["step"] >= told:
                self.sink.alarm(alarm["step"] + 1, alarm["kind"], alarm["text"])
                self.sent[ALARMS] = alarm["step"] + 1
        self._write_note()

    def _send(self, mark: str, number: int, figures: Figures) -> None:
        if not figures or number <= self.sent.get(mark, -1):
            return
        send = self.sink.step if mark == STEP else self.sink.measured
        send(number, figures)
        self.sent[mark] = number
        self.count += 1
        self._write_note()

    def _write_note(self) -> None:
        run = str(self.run.path.resolve())
        note = {"id": self.id, "sent": self.sent, "run": run, "tracker": self._place()}
        files.replace(self.record, json.dumps(note))
