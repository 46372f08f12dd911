"""One hypothesis of a run on trial: what it is compared with, the evidence so far, and whether it
has been refuted.

Leaves out: what becomes of it (`training.watching`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from comas.monitors.evidence import Evidence
from comas.monitors.monitor import Hypothesis, Reading

WARM = 5
"""Steps with values whose mean is the start, where a monitor has not measured it: fewer in runs of
fewer than ten times as many.
"""
LATEST = 10
"""Readings whose mean is told with an alarm, at most."""


class Trial:
    """Of a run of `steps` steps; `level` is the log evidence that makes an alarm."""

    def __init__(self, hypothesis: Hypothesis, steps: int, level: float) -> None:
        self.hypothesis = hypothesis
        self.level = level
        self.evidence = Evidence(steps)
        self.warm = max(1, min(WARM, steps // (2 * WARM)))
        self.readings = 0
        """Steps that had values and no start of their own."""
        self.start_sum = 0.0
        self.start = math.nan
        """What the latest values were compared with."""
        self.latest: list[tuple[int, float]] = []
        """Steps and means of the latest readings."""
        self.alarmed = False

    def hear(self, reading: Reading | None) -> bool:
        """Count what a step says; returns whether that refutes the hypothesis, which it does only
        once in a run.
        """
        bound = self._bound(reading) if reading is not None else None
        if reading is None or bound is None:
            self.evidence.add([], 1.0)
            if reading is not None and reading.values:
                self.evidence.begin_here()
            return False
        read = (self.evidence.steps, _mean(reading))
        self.latest = [*self.latest, read][-LATEST:]
        self.evidence.add(reading.values, bound)
        if self.alarmed or self.evidence.log < self.level:
            return False
        self.alarmed = True
        return True

    def _bound(self, reading: Reading) -> float | None:
        """The greatest mean that the hypothesis allows; None while the start is being measured."""
        if not reading.values:
            return None
        if reading.start is not None:
            self.start = reading.start
        elif self.readings < self.warm:
            self.readings += 1
            self.start_sum += _mean(reading)
            self.start = self.start_sum / self.readings
            return None
        return self.start + self.hypothesis.margin

    @property
    def observed(self) -> float:
        """The mean of the latest readings, of those since the change began."""
        since = self.evidence.since
        means = [mean for step, mean in self.latest if step >= since]
        return math.fsum(means) / len(means) if means else math.nan

    def as_record(self) -> dict[str, Any]:
        """All that has to be known to go on, as JSON."""
        record = self.evidence.as_record()
        record["warm"] = self.warm
        record["readings"] = self.readings
        record["start_sum"] = self.start_sum
        record["start"] = None if math.isnan(self.start) else self.start
        record["latest_readings"] = self.latest
        record["alarmed"] = self.alarmed
        return record

    def take_up(self, record: Mapping[str, Any]) -> None:
        """Go on from a record."""
        # the start is measured as it was begun, however long the run has become since; a checkpoint
        # from before this was recorded does not know
        self.warm = record.get("warm", self.warm)
        self.readings = record["readings"]
        self.start_sum = record["start_sum"]
        # a checkpoint from before readings had steps knows of none
        self.latest = [(step, mean) for step, mean in record.get("latest_readings", [])]
        self.start = math.nan if record["start"] is None else record["start"]
        self.alarmed = record["alarmed"]
        self.evidence.take_up(record)


def _mean(reading: Reading) -> float:
    return math.fsum(reading.values) / len(reading.values)
