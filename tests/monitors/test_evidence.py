"""Evidence: against closed forms, its error by simulation, and what it finds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.monitors.evidence import FRACTIONS, Evidence
from comas.monitors.monitor import Hypothesis, Reading
from comas.monitors.trial import Trial

ALPHA = 0.05


def test_the_first_step_is_the_mean_over_stakes_and_starts() -> None:
    evidence = Evidence(4)
    evidence.add([1.0, 0.0], 0.25)
    bets = [(1 + share * 3) * (1 - share) for share in FRACTIONS]
    capital = 0.25 * sum(bets) / len(bets) + 0.75
    assert math.exp(evidence.log) == pytest.approx(capital, rel=1e-12)


def test_the_second_step_begins_further_bets() -> None:
    evidence = Evidence(4)
    evidence.add([1.0], 0.5)
    evidence.add([0.0], 0.5)
    up = [1 + share for share in FRACTIONS]
    down = [1 - share for share in FRACTIONS]
    both = sum(u * d for u, d in zip(up, down, strict=True)) / len(FRACTIONS)
    capital = 0.25 * both + 0.75 * 0.25 * sum(down) / len(FRACTIONS) + 0.75**2
    assert math.exp(evidence.log) == pytest.approx(capital, rel=1e-12)


def test_steps_without_values_leave_the_capital_as_it_is() -> None:
    evidence = Evidence(10)
    for _ in range(50):
        evidence.add([], 0.3)
    assert evidence.log == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    bound=st.floats(0.01, 0.99),
    values=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    share=st.floats(0.0, 1.0),
)
def test_no_bet_gains_on_average_while_the_hypothesis_holds(
    bound: float, values: list[float], share: float
) -> None:
    """Two points with mean `bound * share`: the expected capital after a step is at most 1."""
    mean = bound * share
    high = max(mean, max(values))
    if high == 0.0:
        return
    chance = mean / high
    capital = 0.0
    for value, weight in ((high, chance), (0.0, 1.0 - chance)):
        evidence = Evidence(5)
        evidence.add([value], bound)
        capital += weight * math.exp(evidence.log)
    assert capital <= 1.0 + 1e-9


@pytest.mark.parametrize(("games", "bound"), [(1, 0.3), (3, 0.5), (128, 0.2)])
def test_the_error_of_a_whole_run_is_below_alpha(games: int, bound: float) -> None:
    """At the bound itself, where it is hardest, and looked at after each of 120 steps."""
    rng = np.random.default_rng(7)
    runs = 200
    alarms = 0
    for _ in range(runs):
        evidence = Evidence(120)
        for _ in range(120):
            evidence.add([float(drawn) for drawn in rng.random(games) < bound], bound)
            if evidence.log >= -math.log(ALPHA):
                alarms += 1
                break
    # 4 standard errors above alpha
    assert alarms / runs <= ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_a_late_change_is_found_and_dated() -> None:
    rng = np.random.default_rng(3)
    evidence = Evidence(180)
    step = 0
    for step in range(180):
        chance = 0.1 if step < 100 else 0.9
        evidence.add([float(drawn) for drawn in rng.random(3) < chance], 0.3)
        if evidence.log >= math.log(1000):
            break
    assert 100 <= step <= 115
    assert abs(evidence.since - 100) <= 3


def test_values_beyond_a_share_are_an_error() -> None:
    with pytest.raises(ValueError, match="values from 0 to 1"):
        Evidence(10).add([1.5], 0.5)


def readings(count: int, mean: float) -> list[Reading]:
    rng = np.random.default_rng(11)
    return [Reading([float(v) for v in rng.random(8) < mean]) for _ in range(count)]


def test_a_trial_goes_on_from_its_record_bit_by_bit() -> None:
    hypothesis = Hypothesis("worse", "it is worse", 0.1)
    whole = Trial(hypothesis, 100, math.log(100))
    first = Trial(hypothesis, 100, math.log(100))
    heard = [*readings(30, 0.2), *readings(30, 0.8)]
    alarms = [whole.hear(reading) for reading in heard]
    for reading in heard[:33]:
        first.hear(reading)
    second = Trial(hypothesis, 100, math.log(100))
    second.take_up(json.loads(json.dumps(first.as_record())))
    rest = [second.hear(reading) for reading in heard[33:]]
    assert rest == alarms[33:]
    assert second.as_record() == whole.as_record()
    assert sum(alarms) == 1
    assert whole.start == pytest.approx(sum(sum(r.values) / 8 for r in heard[:5]) / 5)


def test_a_start_that_was_measured_needs_no_first_steps() -> None:
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 100, math.log(100))
    heard = [trial.hear(Reading([1.0] * 8, start=0.1)) for _ in range(4)]
    assert heard.index(True) <= 1
    assert sum(heard) == 1


def test_a_short_run_that_is_made_longer_keeps_the_start_that_it_measured() -> None:
    """Of twelve steps the first alone is the start; of a hundred, five would be."""
    hypothesis = Hypothesis("worse", "it is worse", 0.1)
    first = Trial(hypothesis, 12, math.log(100))
    heard = readings(3, 0.2)
    for reading in heard:
        first.hear(reading)
    longer = Trial(hypothesis, 100, math.log(100))
    longer.take_up(json.loads(json.dumps(first.as_record())))
    assert longer.start == first.start == sum(heard[0].values) / 8
    before = longer.evidence.log
    longer.hear(Reading([1.0] * 8))
    assert longer.start == first.start
    assert longer.evidence.log > before, "what comes now is compared, not measured"


def test_no_change_is_older_than_the_start_that_it_is_compared_with() -> None:
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 100, math.log(100))
    heard = [Reading([0.0] * 8)] * 5 + [Reading([1.0] * 8)] * 5
    alarms = [trial.hear(reading) for reading in heard]
    assert sum(alarms) == 1
    assert trial.evidence.since == 5


def test_a_change_between_two_readings_may_be_as_old_as_the_first() -> None:
    """As validation accuracy is read: every third step."""
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 100, math.log(100))
    good = Reading([0.0] * 8, start=0.1)
    bad = Reading([1.0] * 8, start=0.1)
    alarms = [trial.hear(one) for one in (good, None, None, good, None, None, bad, None, bad)]
    assert any(alarms)
    assert trial.evidence.since == 4
