"""Feed a tracker, a library that takes figures: a hook sends it the steps that it lacks when a run
begins or goes on, then each step as it is written, and the accuracies before and after. Alarms are
not sent: what they rest on is among the figures.

A tracker of one's own is a file with `open(run) -> Sink`. The newest step that was sent is noted in
`track/<tracker>.json` of the run: what `comas resume` drops and plays again is not sent again.
Figures are called by their path in metrics.jsonl. Leaves out: texts, numbers that are null or not
finite, artifacts, and what libraries could record of the machine and of the console.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comas.hooks import Hook
from comas.storage import files
from comas.storage.records import flat, line
from comas.storage.run import Run
from comas.types import Episode

if TYPE_CHECKING:
    from comas.stats import Interval
    from comas.team.build import Team


PROJECT = "comas"
"""Where runs go, unless the tracker's own environment variable says otherwise."""


@dataclass(frozen=True)
class Tracked:
    """The run that a sink is opened for."""

    name: str
    """Name for people: that of its folder."""
    id: str
    """Made once for this run and tracker: by it a sink finds again what earlier processes sent."""
    config: Mapping[str, Any]
    """Dotted key -> value."""
    folder: Path
    """For files of the tracker; it exists."""
    sent: int
    """Steps that earlier processes sent, as it is noted beside the run."""


class Sink:
    """Takes figures; every method but `step` may be left as it is."""

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        """Send the figures of step `number`, counted from 1."""
        raise NotImplementedError

    def measured(self, number: int, figures: Mapping[str, float]) -> None:
        """Send an accuracy of the whole run, measured before its first step or after so many; by
        default as of a step.
        """
        self.step(number, figures)

    def close(self) -> None:
        """Send what is left: it is over, for this process."""


class Tracker(Hook):
    """One tracker's share of one run; it reports what fails in it, and is left alone then."""

    def __init__(self, name: str, open_sink: Callable[[Tracked], Sink]) -> None:
        self.name = name
        self.open_sink = open_sink
        self.sink = Sink()
        self.id = ""
        self.record = Path()
        """Where the id and `sent` are noted."""
        self.sent = 0
        """The newest step that the tracker has, counted from 1."""
        self.measurements: list[str] = []
        """Measurements that the tracker has: their name, and the step that they were made after."""
        self.has_failed = False
        self.tell: Callable[[str], None] = lambda text: None
        """Called with a failure."""

    def begin(self, run: Run, team: Team | None, start: int) -> None:
        """Open the sink, and send what it lacks of what lies before step `start`."""

        def catch_up() -> None:
            folder = run.path / "track" / Path(self.name).name
            folder.mkdir(parents=True, exist_ok=True)
            self.record = folder.with_name(f"{folder.name}.json")
            note = files.read_object(self.record) or {"id": uuid.uuid4().hex, "sent": 0}
            self.id = note["id"]
            # versions before 0.2 noted a number for each kind of figure
            self.sent = note["sent"]["tokens"] if isinstance(note["sent"], dict) else note["sent"]
            self.measurements = note.get("measurements", [])
            self._write_note()  # before the store hears of the id
            name = run.path.resolve().name
            config = of_config(run.config())
            self.sink = self.open_sink(Tracked(name, self.id, config, folder, self.sent))
            before = run.read_eval("before")
            if before is not None and before["accuracy"] is not None:
                self._send_measurement("before", before["step"], before["accuracy"])
            for metrics in itertools.islice(run.metrics(), start):
                self._send(metrics)

        self._guard(catch_up)

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self._guard(lambda: self._send(json.loads(line(metrics))))

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        if name != "validation" and found is not None:  # which is a figure of its step
            self._guard(lambda: self._send_measurement(name, step, found._asdict()))

    def ended(self, result: Any) -> None:
        self._guard(self.sink.close)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do what may fail: it ends this tracker's work in this process, and nothing else."""
        if self.has_failed:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what libraries say of themselves
                work()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is told in a line
            self.has_failed = True
            self.tell(
                f"track {Path(self.name).name} failed ({type(error).__name__}: {error}); the run"
                " goes on, and the next `comas resume` of it sends what is left"
            )

    def _send(self, metrics: Mapping[str, Any]) -> None:
        number = metrics["step"] + 1
        if number > self.sent:
            self.sink.step(number, figures_of(metrics))
            self.sent = number
            self._write_note()

    def _send_measurement(self, name: str, step: int, found: Mapping[str, Any]) -> None:
        key = f"{name} {step}"
        if key not in self.measurements:
            self.sink.measured(step, figures_of({name: found}))
            self.measurements.append(key)
            self._write_note()

    def _write_note(self) -> None:
        note = {"id": self.id, "sent": self.sent, "measurements": self.measurements}
        files.replace(self.record, json.dumps(note))


# --- figures: a name with slashes -> a finite number


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a line of metrics.jsonl, or of a measurement."""
    return {"/".join(path): number for path, number in _numbers(record) if path != ("step",)}


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as one table with dotted keys; lists as texts."""
    values = {key: value for key, value in flat(config).items() if value != {}}
    return {key: str(value) if isinstance(value, list) else value for key, value in values.items()}


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every finite number of a record with its path; truth counts as 0 and 1. Rows of tables
    are named by their texts and their round, or by their place.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, (*path, str(key)))
    elif isinstance(value, list):
        for index, row in enumerate(value):
            if not isinstance(row, Mapping):
                yield from _numbers(row, (*path, str(index)))
                continue
            labels = [key for key, part in row.items() if isinstance(part, str) or key == "round"]
            names = [str(row[key]) for key in labels] or [str(index)]
            rest = {key: part for key, part in row.items() if key not in labels}
            yield from _numbers(rest, (*path, *names))
    elif isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        yield path, float(value)
