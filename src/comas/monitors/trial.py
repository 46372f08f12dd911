"""One hypothesis of a run on trial: what it is compared with, the evidence so far, and whether it
has been refuted.

Leaves out: what becomes of it (`training.watching`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from comas.monitors.evidence import Evidence, highest_mean
from comas.monitors.monitor import Hypothesis, Reading

WARM = 5
"""Steps with values whose mean is the start, where a monitor has not measured it."""
LATEST = 10
"""Readings whose mean is told with an alarm, at most."""


class Trial:
    """A hypothesis that is refuted with a probability of at most `error` where nothing has changed
    since the start: half of it is that of the evidence, half that of the start, which is measured.
    """

    def __init__(self, hypothesis: Hypothesis, error: float) -> None:
        self.hypothesis = hypothesis
        self.error = error / 2
        self.level = -math.log(self.error)
        """The log evidence that makes an alarm."""
        self.evidence = Evidence()
        self.readings = 0
        """Steps that had values and no start of their own."""
        self.start_sum = 0.0
        self.start_values = 0
        self.start_count = 0
        """Values in those steps, and the observations behind them."""
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
        """The greatest mean that the hypothesis allows; None while the start is being measured.

        A start that is known less well than the margin allows what it may have been.
        """
        if not reading.values:
            return None
        if reading.start is not None:
            self.start = reading.start
            count = reading.start_count
        elif self.readings < WARM:
            self.readings += 1
            self.start_sum += math.fsum(reading.values)
            self.start_values += len(reading.values)
            self.start_count += reading.behind or len(reading.values)
            self.start = self.start_sum / self.start_values
            return None
        else:
            count = self.start_count
        allowed = self.start + self.hypothesis.margin
        return max(allowed, highest_mean(self.start, count, self.error)) if count else allowed

    @property
    def observed(self) -> float:
        """The mean of the latest readings, of those since the change began."""
        since = self.evidence.since
        means = [mean for step, mean in self.latest if step >= since]
        return math.fsum(means) / len(means) if means else math.nan

    def as_record(self) -> dict[str, Any]:
        """All that has to be known to go on, as JSON."""
        record = self.evidence.as_record()
        record["readings"] = self.readings
        record["start_sum"] = self.start_sum
        record["start_values"] = self.start_values
        record["start_count"] = self.start_count
        record["start"] = None if math.isnan(self.start) else self.start
        record["latest_readings"] = self.latest
        record["alarmed"] = self.alarmed
        return record

    def take_up(self, record: Mapping[str, Any]) -> None:
        """Go on from a record."""
        self.readings = record["readings"]
        # a checkpoint from before values were counted has a sum of means: one value a step, which
        # allows the start more than it has to
        self.start_sum = record["start_sum"]
        self.start_values = record.get("start_values", self.readings)
        self.start_count = record.get("start_count", self.readings)
        # a checkpoint from before readings had steps knows of none
        self.latest = [(step, mean) for step, mean in record.get("latest_readings", [])]
        self.start = math.nan if record["start"] is None else record["start"]
        self.alarmed = record["alarmed"]
        self.evidence.take_up(record)


def _mean(reading: Reading) -> float:
    return math.fsum(reading.values) / len(reading.values)
