"""Evidence: against closed forms, its error by simulation, and what it finds."""

from __future__ import annotations

import json
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.monitors import late_fall
from comas.monitors.evidence import (
    CHANCE,
    FRACTIONS,
    LATEST,
    Evidence,
    Trial,
    highest_mean,
    seen_after,
)
from comas.monitors.monitor import Allowance, Expected, Hypothesis, Reading, Seen, due

ALPHA = 0.05


def test_the_first_step_is_the_mean_over_stakes_and_starts() -> None:
    evidence = Evidence()
    evidence.add([1.0, 0.0], 0.25)
    bets = [(1 + share * 3) * (1 - share) for share in FRACTIONS]
    capital = CHANCE * sum(bets) / len(bets) + (1 - CHANCE)
    assert math.exp(evidence.log) == pytest.approx(capital, rel=1e-12)


def test_the_second_step_begins_further_bets() -> None:
    evidence = Evidence()
    evidence.add([1.0], 0.5)
    evidence.add([0.0], 0.5)
    up = [1 + share for share in FRACTIONS]
    down = [1 - share for share in FRACTIONS]
    both = sum(u * d for u, d in zip(up, down, strict=True)) / len(FRACTIONS)
    later = (1 - CHANCE) * CHANCE * sum(down) / len(FRACTIONS)
    capital = CHANCE * both + later + (1 - CHANCE) ** 2
    assert math.exp(evidence.log) == pytest.approx(capital, rel=1e-12)


def test_steps_without_values_leave_the_capital_as_it_is() -> None:
    evidence = Evidence()
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
        evidence = Evidence()
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
        evidence = Evidence()
        for _ in range(120):
            evidence.add([float(drawn) for drawn in rng.random(games) < bound], bound)
            if evidence.log >= -math.log(ALPHA):
                alarms += 1
                break
    # 4 standard errors above alpha
    assert alarms / runs <= ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_a_late_change_is_found_and_dated() -> None:
    rng = np.random.default_rng(3)
    evidence = Evidence()
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
        Evidence().add([1.5], 0.5)


def readings(count: int, mean: float) -> list[Reading]:
    rng = np.random.default_rng(11)
    return [Reading([float(v) for v in rng.random(8) < mean]) for _ in range(count)]


def test_a_trial_goes_on_from_its_record_bit_by_bit() -> None:
    hypothesis = Hypothesis("worse", "it is worse", 0.1)
    whole = Trial(hypothesis, 0.02)
    first = Trial(hypothesis, 0.02)
    heard = [*readings(30, 0.2), *readings(30, 0.8)]
    alarms = [whole.hear(reading) for reading in heard]
    for reading in heard[:33]:
        first.hear(reading)
    second = Trial(hypothesis, 0.02)
    second.take_up(json.loads(json.dumps(first.as_record())))
    rest = [second.hear(reading) for reading in heard[33:]]
    assert rest == alarms[33:]
    assert second.as_record() == whole.as_record()
    assert sum(alarms) == 1
    assert whole.start == pytest.approx(sum(sum(r.values) / 8 for r in heard[:5]) / 5)


def test_a_start_that_was_measured_needs_no_first_steps() -> None:
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 0.02)
    heard = [trial.hear(Reading([1.0] * 8, start=0.1)) for _ in range(4)]
    assert heard.index(True) <= 1
    assert sum(heard) == 1


@pytest.mark.parametrize(("questions", "steps"), [(4, 60), (16, 40), (90, 20)])
def test_a_run_in_which_nothing_changes_is_alarmed_no_more_often_than_said(
    questions: int, steps: int
) -> None:
    """The start is measured too: few questions say little of it, and the bound has to know that."""
    rng = np.random.default_rng(13)
    runs = 150
    alarms = 0
    for _ in range(runs):
        trial = Trial(Hypothesis("worse", "it is worse", 0.07), ALPHA)
        for _ in range(steps):
            alarms += trial.hear(Reading([float(v) for v in rng.random(questions) < 0.4]))
    assert alarms / runs <= ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_a_late_fall_is_alarmed_no_more_often_than_said_where_accuracy_stays() -> None:
    rng = np.random.default_rng(17)
    alarms = 0
    for _ in range(60):
        monitor = late_fall.watch()
        trial = Trial(late_fall.FALLEN, ALPHA)
        for step in range(60):
            validated = [float(v) for v in rng.random(16) < 0.5]
            alarms += trial.hear(monitor.read(Seen(step, [], validated=validated))["fallen"])
    assert alarms / 60 <= ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / 60)


def test_a_late_fall_is_seen() -> None:
    monitor = late_fall.watch()
    trial = Trial(late_fall.FALLEN, ALPHA)
    heard = []
    for step in range(30):
        validated = [1.0] * 64 if step < 10 else [1.0, 0.0] * 32
        heard.append(trial.hear(monitor.read(Seen(step, [], validated=validated))["fallen"]))
    assert 10 <= heard.index(True) <= 14


@given(count=st.integers(1, 60), share=st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_the_limit_of_a_mean_is_that_of_chernoff(count: int, share: float) -> None:
    limit = highest_mean(share, count, 0.01)
    assert share <= limit <= 1.0
    if 0.0 < share < limit < 1.0 - 1e-6:  # steep there: the root is known to 1e-12
        one, other = (
            share * math.log(share / limit),
            (1 - share) * math.log((1 - share) / (1 - limit)),
        )
        assert count * (one + other) == pytest.approx(math.log(100), rel=1e-6)


def test_no_change_is_older_than_the_start_that_it_is_compared_with() -> None:
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 0.02)
    heard = [Reading([0.0] * 8)] * 5 + [Reading([1.0] * 8)] * 5
    alarms = [trial.hear(reading) for reading in heard]
    assert sum(alarms) == 1
    assert trial.evidence.since == 5


def test_a_change_between_two_readings_may_be_as_old_as_the_first() -> None:
    """As validation accuracy is read: every third step."""
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 0.02)
    good = Reading([0.0] * 8, start=0.1)
    bad = Reading([1.0] * 8, start=0.1)
    alarms = [trial.hear(one) for one in (good, None, None, good, None, None, bad, None, bad)]
    assert any(alarms)
    assert trial.evidence.since == 4


@given(tokens=st.floats(0, 1e6), start=st.integers(0, 200), cost=st.floats(1, 500))
def test_what_monitors_ask_is_paid_for_by_their_allowance(
    tokens: float, start: int, cost: float
) -> None:
    allowance = Allowance(tokens, 50)
    at_start, rate = allowance.divide(start, 4 * cost, 8.0, cost)
    later = sum(due(rate, step) for step in range(1, allowance.steps))
    assert at_start * 4 * cost <= tokens / 2
    assert at_start * 4 * cost + later * cost <= tokens + cost
    assert at_start <= start
    assert later <= 8 * 50


def test_what_the_start_leaves_is_for_the_steps_behind_the_first() -> None:
    assert Allowance(100.0, 11).divide(5, 10.0, 8.0, 1.0) == (5, 5.0)


def test_a_forecast_is_the_step_in_which_a_trial_of_the_worst_values_alarms() -> None:
    hypothesis = Hypothesis("rejected", "judges reject", 0.1)
    foretold = seen_after(hypothesis, 0.001, Expected(0.2, 200, 2.0), 100)
    trial = Trial(hypothesis, 0.001)
    heard = [trial.hear(Reading([1.0, 1.0], 0.2, 200)) for _ in range(100)]
    assert foretold == heard.index(True) + 1


def test_more_values_a_step_are_seen_sooner_and_a_start_of_one_never() -> None:
    hypothesis = Hypothesis("rejected", "judges reject", 0.1)
    after = [seen_after(hypothesis, 0.001, Expected(0.2, 200, rate), 500) for rate in (0.5, 1, 4)]
    assert None not in after
    assert sorted(after, key=lambda steps: -(steps or 0)) == after
    assert after[0] != after[-1]
    assert seen_after(hypothesis, 0.001, Expected(0.95, 200, 4.0), 500) is None


def test_half_of_the_error_is_the_evidences() -> None:
    assert Trial(Hypothesis("worse", "it is worse", 0.1), 0.02).level == pytest.approx(
        math.log(100)
    )


@pytest.mark.parametrize("count", [LATEST // 2, 2 * LATEST])
def test_an_alarm_reports_the_mean_of_the_latest_readings_alone(count: int) -> None:
    trial = Trial(Hypothesis("worse", "it is worse", 0.1), 0.02)
    means = [0.5 + 0.02 * number for number in range(count)]
    for mean in means:
        trial.hear(Reading([mean] * 8, start=0.1))
    assert trial.evidence.since == 0
    assert trial.observed == pytest.approx(fmean(means[-LATEST:]))
