"""A tracker in a file, as users write one, and a store that outlives its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from comas.storage.run import Run
from comas.trackers.sink import Sink, Tracked, Tracker
from tests.support.faults import Crash
from tests.support.run_folders import checkpoint, step

MINE = """
import json, os, time
from comas.trackers.sink import Sink

class Mine(Sink):
    def __init__(self, run):
        self.file = run.folder / "lines.jsonl"

    def step(self, number, figures):
        print("sending", number)
        with self.file.open("a") as file:
            file.write(json.dumps([number, figures]) + "\\n")
        {then}

def open(run):
    return Mine(run)
"""


def tracker(folder: Path, name: str, then: str = "pass") -> Path:
    """A tracker's file, whose sink does something more after each step."""
    path = folder / f"{name}.py"
    path.write_text(MINE.format(then=then))
    return path


def lines_of(run: Path, name: str) -> list[tuple[int, dict[str, float]]]:
    """What the tracker in that file has, in the order in which it was sent."""
    text = (run / "track" / f"{name}.py" / "lines.jsonl").read_text()
    return [tuple(json.loads(line)) for line in text.splitlines()]


class Store(Sink):
    """Keeps figures in memory; the process that sends dies in operation number `dies`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.dies = -1
        self.operations = 0
        self.closed = 0
        self.opened: list[Tracked] = []

    def open(self, run: Tracked) -> Sink:
        self.opened.append(run)
        return self

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.rows.append((number, figures))
        self.operations += 1
        if self.operations - 1 == self.dies:
            raise Crash("killed")

    def close(self) -> None:
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [number for number, figures in self.rows if "tokens" in figures]


def attach(run: Run, store: Store, start: int) -> Tracker:
    """A tracker of a run that begins or goes on at a step."""
    tracker = Tracker("store", store.open)
    tracker.begin(run, None, start)
    assert not tracker.has_failed
    return tracker


def play(run: Run, tracker: Tracker, start: int, end: int) -> None:
    """Steps that are written while a tracker is told; nothing is committed."""
    for number in range(start, end):
        step(run, number)
        tracker.step(list(run.metrics())[-1], [])


def commit(run: Run, start: int, end: int) -> None:
    """Play steps and commit them."""
    for number in range(start, end):
        step(run, number)
    checkpoint(run, end)
