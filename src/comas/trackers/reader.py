"""What a tracker has of a run, and what it still lacks: read from the run's folder, sent in order.

A step is sent once it is committed: what `comas resume` drops and plays again was never sent. What
was sent is noted in `track/` as soon as the tracker keeps it; where a process died in between, the
tracker's own store is asked. Leaves out: when to look (`cli.track`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from comas.storage import files
from comas.storage.alarms import read_alarms
from comas.storage.run import Run
from comas.trackers.figures import Figures, of_config, of_measurement, of_step
from comas.trackers.sink import Sink, Tracked
from comas.types import UserMistake

STEP = "tokens"
"""A figure that every step has: by it a store tells which steps it has."""
MARKS = (STEP, "accuracy/before", "accuracy/after")
ALARMS = "alarms"
"""Alarms so far, a figure of each step that was watched; no store tells which were told to it."""
BATCH = 100
"""Measurements after which is noted what was sent."""


@dataclass(frozen=True)
class Measured:
    """What is sent at once."""

    mark: str
    """The figure that tells whether it has been sent."""
    number: int
    """How many steps lie behind."""
    figures: Figures


class Feed:
    """One tracker's share of one run."""

    def __init__(self, run: Run, tracker: str, open_sink: Callable[[Tracked], Sink]) -> None:
        self.run = run
        self.name = Path(tracker).name
        self.open_sink = open_sink
        self.folder = run.path / "track"
        self.sink: Sink | None = None
        self.id = ""
        self.sent: dict[str, int] = {}
        """Mark -> the newest number that the tracker has."""
        self.steps = 0
        """Lines of metrics.jsonl that have been read."""
        self.bytes = 0
        """Their length."""
        self._lock: filelock.FileLock | None = None

    def catch_up(self, patience: float = 0.0) -> int:
        """Send all that is committed and was not sent yet; return how many measurements. The first
        time, wait so many seconds for another process that sends the same.
        """
        marker = self.run.marker()
        if (
            marker is None
        ):  # a run that has committed nothing may be replaced: leave its folder alone
            return 0
        sink = self.sink or self._open(patience)
        count = 0
        for measured in self._committed(marker):
            if measured.number <= self._newest(measured.mark):
                continue
            send = sink.step if measured.mark == STEP else sink.measured
            send(measured.number, measured.figures)
            self.sent[measured.mark] = measured.number
            count += 1
            if count % BATCH == 0:
                self._note(sink)
        told = self._tell_alarms(sink, marker["step"])
        if count % BATCH or told:
            self._note(sink)
        return count

    def _tell_alarms(self, sink: Sink, committed: int) -> bool:
        """Tell of the alarms of committed steps that the tracker was not told of; whether there
        were any.
        """
        newest = self._newest(ALARMS)
        new = [a for a in read_alarms(self.run.path) if newest <= a["step"] < committed]
        for alarm in new:
            sink.alarm(alarm["step"] + 1, alarm["kind"], alarm["text"])
            self.sent[ALARMS] = alarm["step"] + 1
        return bool(new)

    def close(self) -> None:
        """End the tracker's own work in this process."""
        if self.sink is not None:
            self.sink.close()

    def release(self) -> None:
        """Let other processes send."""
        if self._lock is not None:
            self._lock.release()

    def _open(self, patience: float) -> Sink:
        """Open the sink while others send nothing, and find out what it has."""
        folder = self.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        self._keep_others_out(patience)
        self._read_note()
        config = of_config(self.run.config())
        name = self.run.path.resolve().name
        self.sink = self.open_sink(Tracked(name, self.id, config, folder))
        for mark in MARKS:
            newest = self.sink.last(mark)
            if newest is not None:
                self.sent[mark] = newest
        if self._newest(STEP) < 0:  # also a store that was emptied
            self.sent.pop(ALARMS, None)
        return self.sink

    def _keep_others_out(self, patience: float) -> None:
        self._lock = filelock.FileLock(self.folder / f"{self.name}.lock")
        try:
            self._lock.acquire(timeout=patience)
        except filelock.Timeout:
            raise UserMistake(
                f"track {self.name}: another process is sending {self.run.path} to it"
            ) from None
        except NotImplementedError:  # some network disks have no locks
            pass

    def _read_note(self) -> None:
        """What earlier processes sent, and the id under which they did, or a new one."""
        path = self._note_path()
        try:
            note = files.read_object(path)
        except UserMistake as error:
            raise UserMistake(f"{error}; remove it to send everything anew") from error
        if note is None:
            self.id = uuid.uuid4().hex
            self._write_note()  # before the store hears of it
            return
        if not isinstance(note, dict) or not note.keys() >= {"id", "sent"}:
            raise UserMistake(f"{path} is damaged; remove it to send everything anew")
        self.id = note["id"]
        self.sent = note["sent"]

    def _newest(self, mark: str) -> int:
        return self.sent.get(mark, -1)

    def _note(self, sink: Sink) -> None:
        """Note what was sent, once the tracker keeps it."""
        sink.flush()
        self._write_note()

    def _write_note(self) -> None:
        files.replace(self._note_path(), json.dumps({"id": self.id, "sent": self.sent}))

    def _note_path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def _committed(self, marker: Mapping[str, Any]) -> Iterator[Measured]:
        """What is committed and was not read yet; accuracies each time."""
        yield from self._accuracy("before", 0)
        yield from self._steps(marker["metrics_bytes"])
        yield from self._accuracy("after", marker["step"])

    def _accuracy(self, name: str, step: int) -> Iterator[Measured]:
        """That measurement, where it has been made of the team after this step."""
        record = self.run.read_eval(name, note=lambda _: None)
        if record is None or record["step"] != step:
            return
        figures = of_measurement(name, record)
        if figures:
            yield Measured(f"accuracy/{name}", step, figures)

    def _steps(self, end: int) -> Iterator[Measured]:
        """The lines of metrics.jsonl up to byte `end`; those that were sent are passed over."""
        if end < self.bytes:  # an older checkpoint took the place of a damaged one
            self.bytes = 0
            self.steps = 0
        path = self.run.path / "metrics.jsonl"
        alarmed = [alarm["step"] for alarm in read_alarms(self.run.path)]
        with path.open("rb") as log:
            log.seek(self.bytes)
            while self.bytes < end:
                line = log.readline()
                self.bytes += len(line)
                self.steps += 1
                if self.steps <= self._newest(STEP):
                    continue
                try:
                    metrics = json.loads(line)
                except ValueError as error:
                    raise UserMistake(f"{path} line {self.steps} is damaged: {error}") from error
                figures = of_step(metrics)
                if metrics.get("monitors"):
                    figures[ALARMS] = float(sum(step < self.steps for step in alarmed))
                yield Measured(STEP, self.steps, figures)
