"""Samples of one question are one value: where nothing changes, nothing is alarmed."""

from __future__ import annotations

import numpy as np
import pytest

from comas.monitors import rejections, unreadable
from tests.support.alarms import MIXED, QUESTIONS, alarmed, step_of

RUNS = 12


@pytest.mark.parametrize("shares", sorted(MIXED))
def test_a_step_has_a_value_per_question(shares: str) -> None:

    seen = step_of(MIXED[shares], np.random.default_rng(0), 3)
    for monitor in (rejections.watch(), unreadable.watch()):
        for reading in monitor.read(seen).values():
            assert len(reading.values) == QUESTIONS
            assert all(0.0 <= value <= 1.0 for value in reading.values)


@pytest.mark.parametrize("shares", ["Beta(.25, .25)", "all or nothing, .5"])
def test_questions_that_differ_alarm_nobody(shares: str) -> None:
    """A value per game alarmed a quarter of such runs: none of 12 would be a chance of .03."""
    assert alarmed(MIXED[shares], 40, RUNS) == {"rejected": 0.0, "unreadable": 0.0, "cut": 0.0}
