"""Evidence against a hypothesis about a run, gathered step by step: an e-process, which may be
looked at after every step without its error growing.

The hypothesis is that in every step the mean of some values between 0 and 1, given all that was
seen before, is at most `bound`. Against it bets are made: who stakes the share `fraction` of what a
bet can lose has its capital multiplied by `1 + fraction * (value / bound - 1)`, which is no gain on
average as long as the hypothesis holds (Waudby-Smith and Ramdas 2024, arXiv 2010.09686). Bets begin
in every step with a prior weight, so that a run which was healthy for long loses little of its
power (a mixture over change points: Shin, Ramdas and Rinaldo 2022, arXiv 2203.03532). The capital,
which begins as 1, therefore exceeds 1 / alpha with a probability of at most alpha in the whole run
(Ville 1939). Leaves out: what is watched, what becomes of an alarm (`training.watching`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from comas.monitors.monitor import Expected, Hypothesis, Reading, due

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Stakes, each with an equal part of the capital: small ones find small changes in many values,
great ones great changes in few.
"""
NOTHING = -1e300
"""The logarithm of no capital, as a number that JSON can hold."""
MOST = 0.999
"""A bound from which on no value could say much against the hypothesis."""
CHANCE = 1 / 64
"""Prior chance that a change comes in the next step, if it has not come. Runs of any length have
the same, so that one that is made longer is what it would have been.
"""


ARRAYS = ("betting", "sums", "lowest", "since")
"""Arrays of `Evidence` with a number per stake, as its record calls them."""


class Evidence:
    """Evidence against one hypothesis."""

    def __init__(self) -> None:
        self.steps = 0
        self._idle = 0.0
        """Log of the weight of changes that are still to come."""
        self._betting = np.full(len(FRACTIONS), NOTHING)
        """Per stake, the log capital of the bets that have begun."""
        self._sums = np.zeros(len(FRACTIONS))
        """Per stake, the log capital of a bet that began in the first step."""
        self._lowest = np.zeros(len(FRACTIONS))
        self._since = np.zeros(len(FRACTIONS), dtype=np.int64)

    def add(self, values: Sequence[float], bound: float) -> None:
        """Count the values of one more step, all in [0, 1]; none where the step has none."""
        gains = np.zeros(len(FRACTIONS))  # per stake, what the step adds to the log capital
        if values and bound < MOST:
            array = np.asarray(values, dtype=np.float64)
            if array.min() < 0.0 or array.max() > 1.0:
                raise ValueError(f"values from 0 to 1 are wanted: {array.min()} to {array.max()}")
            surprise = array / max(bound, 1e-9) - 1.0
            gains = np.log1p(np.asarray(FRACTIONS)[:, None] * surprise).sum(axis=1)
        beginning = self._idle + np.log(CHANCE)
        self._idle += np.log1p(-CHANCE)
        self._betting = np.logaddexp(self._betting, beginning) + gains
        # where a bet would best have begun
        lower = self._sums < self._lowest
        self._lowest = np.where(lower, self._sums, self._lowest)
        self._since = np.where(lower, self.steps, self._since)
        self._sums = self._sums + gains
        self.steps += 1

    def begin_here(self) -> None:
        """No change is older than this: what came before is what later steps are compared with."""
        self._since[:] = self.steps

    @property
    def log(self) -> float:
        """The natural logarithm of the capital."""
        all_stakes = np.logaddexp.reduce(self._betting)
        betting = all_stakes - np.log(len(FRACTIONS))
        return float(np.logaddexp(self._idle, betting))

    @property
    def since(self) -> int:
        """The step, counted from 0, in which the best bet would have begun."""
        best = int(np.argmax(self._sums - self._lowest))
        return int(self._since[best])

    def as_record(self) -> dict[str, Any]:
        """All that has to be known to go on, as JSON; floats come back bit by bit."""
        arrays = {name: getattr(self, f"_{name}").tolist() for name in ARRAYS}
        return {"steps": self.steps, "idle": self._idle, **arrays}

    def take_up(self, record: Mapping[str, Any]) -> None:
        """Go on from a record."""
        self.steps = record["steps"]
        self._idle = record["idle"]
        for name in ARRAYS:
            kind = getattr(self, f"_{name}").dtype
            setattr(self, f"_{name}", np.asarray(record[name], dtype=kind))


def highest_mean(mean: float, count: int, error: float) -> float:
    """The upper confidence limit of a mean of `count` values from 0 to 1 that were drawn alike,
    whatever their distribution: the true mean is above it with a probability of at most `error`.

    The greatest q with count * KL(mean, q) <= log(1 / error), of Bernoulli distributions (Chernoff;
    Hoeffding 1963 for values between 0 and 1).
    """
    from scipy.optimize import brentq  # half a second, which an evaluation does not need
    from scipy.special import rel_entr

    allowed = math.log(1.0 / error) / count

    def divergence(q: float) -> float:
        return float(rel_entr(mean, q) + rel_entr(1.0 - mean, 1.0 - q))

    if divergence(1.0 - 1e-12) <= allowed:
        return 1.0
    limit: Any = brentq(lambda q: divergence(q) - allowed, mean, 1.0 - 1e-12)
    return float(limit)


# --- a hypothesis on trial

WARM = 5
"""Steps with values whose mean is the start, where a monitor has not measured it."""
LATEST = 10
"""Readings whose mean is reported with an alarm, at most."""


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
        self.start_count = 0
        """Values in those steps."""
        self.start = math.nan
        """Mean that the latest values were compared with."""
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
        read = (self.evidence.steps, fmean(reading.values))
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
            self.start_count += len(reading.values)
            self.start = self.start_sum / self.start_count
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
        return fmean(means) if means else math.nan

    def as_record(self) -> dict[str, Any]:
        """All that has to be known to go on, as JSON."""
        return {
            **self.evidence.as_record(),
            "scale": self.hypothesis.scale,
            "readings": self.readings,
            "start_sum": self.start_sum,
            "start_count": self.start_count,
            "start": None if math.isnan(self.start) else self.start,
            "latest_readings": self.latest,
            "alarmed": self.alarmed,
        }

    def take_up(self, record: Mapping[str, Any]) -> None:
        """Go on from a record."""
        self.readings = record["readings"]
        # a checkpoint of 0.1 has a sum of means, one a step, and no steps of its readings
        self.start_sum = record["start_sum"]
        self.start_count = record.get("start_count", self.readings)
        self.latest = [(step, mean) for step, mean in record.get("latest_readings", [])]
        self.start = math.nan if record["start"] is None else record["start"]
        self.alarmed = record["alarmed"]
        self.evidence.take_up(record)


def seen_after(hypothesis: Hypothesis, error: float, expected: Expected, steps: int) -> int | None:
    """Steps after which a hypothesis is refuted where each value is as bad as it can be; None where
    that takes more than `steps`.
    """
    trial = Trial(hypothesis, error)
    for step in range(steps):
        values = [1.0] * due(expected.per_step, step)
        if trial.hear(Reading(values, expected.start, expected.behind)):
            return step + 1
    return None
