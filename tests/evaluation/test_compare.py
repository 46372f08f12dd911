"""What an evaluation says: intervals, tests against closed forms and by simulation, cells,
comparisons, corrections.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from comas.evaluation import report
from comas.evaluation.accuracy import paired_gain
from comas.evaluation.report import CellReport
from comas.game.cost import cost
from comas.stats import (
    accuracy_interval,
    gain_interval,
    holm,
    mcnemar,
    mean_interval,
    pass_at,
    sign_flips,
    two_level,
    two_level_difference,
    wilson,
)


def test_mcnemar_against_the_binomial_by_hand() -> None:
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert mcnemar(0, 20) == pytest.approx(2 / 2**20)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (10, 10), (500, 500), (61, 512)])
def test_wilson_as_scipy_has_it(right: int, n: int) -> None:
    low, high = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right, n) == pytest.approx((right / n, low, high, n), abs=1e-15)


def test_a_gain_against_the_normal_limit() -> None:
    differences = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 400, p=[0.2, 0.5, 0.3])
    interval = gain_interval(list(differences))
    p = sign_flips(list(differences))
    error = differences.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(differences.mean())
    limits = tuple(differences.mean() + error * np.array([-1.96, 1.96]))
    assert (interval.low, interval.high) == pytest.approx(limits, abs=0.02 * error)
    assert p == pytest.approx(2 * stats.norm.sf(abs(differences.mean()) / error), abs=0.02)
    assert sign_flips(list(differences)) == p
    room = 1 - 0.025 ** (1 / 9)  # nine that agree say little of the tenth
    assert gain_interval([0.0] * 9)[:3] == pytest.approx((0, -room, room))
    # an exception may be a loss
    assert gain_interval([1.0] * 9)[:3] == pytest.approx((1, 1 - 2 * room, 1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_its_definition(values: list[float]) -> None:
    """A hypothesis is rejected at level a if, for it and all smaller ones, p(k) <= a / (m - k + 1):
    the smallest such a.
    """
    m = len(values)
    found = holm(values)
    for i in range(m):
        smaller = sorted(values)[: sorted(values).index(values[i]) + 1]
        assert found[i] == pytest.approx(min(1.0, max((m - k) * p for k, p in enumerate(smaller))))
    assert all(
        found[i] <= found[j]
        for i, j in itertools.permutations(range(m), 2)
        if values[i] < values[j]
    )


def test_runs_that_agree_do_not_widen_the_interval() -> None:
    gaps = np.zeros((3, 100))
    gaps[:, :40] = 1.0
    gaps[:, 90:] = -1.0
    rng = np.random.default_rng(0)
    alike = np.stack([rng.permutation(row) for row in gaps])  # all means are .3
    apart = alike.copy()
    apart[0, np.flatnonzero(apart[0] == 0)[:4]] = 1.0
    (narrow, p), (wide, _) = two_level(alike.tolist()), two_level(apart.tolist())
    assert narrow.high - narrow.low < 1.1 * (wide.high - wide.low)
    assert p < 0.001


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_two_levels_hold_the_truth(runs: int) -> None:
    """Coverage of what is named 95 %, with and without differences between runs."""
    rng = np.random.default_rng(runs)
    for between_runs in (0.0, 0.1):
        held = 0
        for _ in range(400):
            table = rng.normal(0, between_runs, (runs, 1)) + rng.normal(0, 1, (runs, 60))
            interval = two_level(table.tolist())[0]
            held += interval.low <= 0 <= interval.high
        assert held / 400 > 0.91


def test_equal_systems_are_equal_whatever_rounding_says() -> None:
    (interval, p) = two_level_difference([[0.2] * 20], [[0.2] * 20] * 3)
    assert interval.mean == pytest.approx(0.0)
    assert p == 1.0


def test_two_levels_against_their_limits() -> None:
    rng = np.random.default_rng(0)
    # nothing varies between runs: an interval over questions
    runs_alike = np.tile((rng.random(200) < 0.6).astype(float), (5, 1))
    assert two_level(runs_alike.tolist())[0][:3] == pytest.approx(
        mean_interval(list(runs_alike[0]))[:3]
    )
    # nothing varies between questions: an interval over runs
    questions_alike = np.tile(rng.random((6, 1)), (1, 50))
    assert two_level(questions_alike.tolist())[0][:3] == pytest.approx(
        mean_interval(list(questions_alike[:, 0]))[:3]
    )
    with pytest.raises(ValueError, match="two or more of each"):
        two_level([[1.0, 0.0]])
    # one run each: a paired t test
    found, p = two_level_difference([[0.0, 1.0, 0.0, 1.0]], [[1.0, 1.0, 1.0, 1.0]])
    assert p == pytest.approx(stats.ttest_rel([1, 1, 1, 1], [0, 1, 0, 1]).pvalue)
    assert found.mean == 0.5
    assert two_level_difference([[1.0, 0.0]], [[1.0, 0.0]])[1] == 1.0


def simulated(
    trials: int, S: int, Q: int, run: float, question: float
) -> tuple[float, float, float]:
    """Coverage of the two-level interval, of a t interval over runs alone, and false alarms of the
    difference.
    """
    rng = np.random.default_rng(S * Q)
    chance = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    truth = chance(rng.normal(0, run, (3000, 1)) + rng.normal(0, question, (1, 3000))).mean()
    covered = over_runs = alarms = 0
    for _ in range(trials):
        hardness = rng.normal(0, question, (1, Q))
        one, other = (
            (rng.random((S, Q)) < chance(rng.normal(0, run, (S, 1)) + hardness)).astype(float)
            for _ in range(2)
        )
        (found, _), runs = two_level(one.tolist()), mean_interval(list(one.mean(1)))
        covered += found.low <= truth <= found.high
        over_runs += runs.low <= truth <= runs.high
        alarms += two_level_difference(one.tolist(), other.tolist())[1] < 0.05
    return covered / trials, over_runs / trials, alarms / trials


@pytest.mark.parametrize(
    ("S", "Q", "run", "question"), [(3, 100, 0.3, 1.5), (5, 300, 0.3, 1.0), (5, 200, 0.8, 0.5)]
)
def test_two_levels_by_simulation(S: int, Q: int, run: float, question: float) -> None:
    trials = 400
    covered, _, alarms = simulated(trials, S, Q, run, question)
    error = 3 * (0.05 * 0.95 / trials) ** 0.5
    assert abs(covered - 0.95) < error + 0.01
    assert abs(alarms - 0.05) < error + 0.01


def test_what_the_two_levels_are_for_and_where_they_miss() -> None:
    """Runs that hardly differ, judged over runs alone, look far too certain about other questions;
    two runs alarm too often.
    """
    _, over_runs, _ = simulated(300, 5, 300, 0.0, 1.5)
    assert over_runs < 0.88
    _, _, alarms = simulated(600, 2, 100, 0.3, 1.5)
    assert 0.05 < alarms < 0.12


def test_pairing_by_run_is_cautious() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        skill = rng.normal(0, 0.3, (3, 1)) + rng.normal(0, 1.5, (1, 100))
        one, other = ((rng.random((3, 100)) < 1 / (1 + np.exp(-skill))) * 1.0 for _ in range(2))
        alarms += two_level((other - one).tolist())[1] < 0.05
    assert alarms <= 15


def test_sign_flips_by_hand_and_against_mcnemar() -> None:
    assert sign_flips([0.5, 0.25]) == 2 / 4
    assert sign_flips([0.0, 0.0]) == 1.0
    assert sign_flips([1.0] * 6 + [0.0] * 50) == mcnemar(6, 0) == 2 / 64
    assert sign_flips([1.0] * 9 + [-1.0] * 2) == pytest.approx(mcnemar(9, 2))
    assert sign_flips([1.0] * 30 + [-1.0] * 15) == pytest.approx(mcnemar(30, 15), abs=0.02)


@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), max_size=40),
    st.integers(1, 1000),
)
def test_a_p_value_of_sign_flips_is_a_probability(differences: list[float], draws: int) -> None:
    assert 0 < sign_flips(differences, draws=draws) <= 1


def test_sign_flips_draw_as_often_as_they_say() -> None:
    even = [1.0, -1.0] * 10  # every draw lies as far from 0 as what was seen, or farther
    assert (
        sign_flips(even)
        == sign_flips(even, draws=1)
        == sign_flips(even, draws=333)
        == sign_flips(even, draws=700)
        == 1.0
    )
    clear = [1.0] * 60  # none does
    assert sign_flips(clear, draws=700) == 1 / 701


@given(st.integers(2, 40), st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0]))
def test_where_all_questions_agree_interval_and_p_agree(n: int, difference: float) -> None:
    """An interval beyond 0 goes with a p below .05, however few questions there are."""
    interval = gain_interval([difference] * n)
    p = sign_flips([difference] * n)
    assert -1 <= interval.low <= interval.mean <= interval.high <= 1
    if p >= 0.05 and abs(difference) == 1.0:
        assert interval.low < 0 < interval.high
    if interval.low > 0 or interval.high < 0:
        assert p < 0.05


def test_constants_are_no_certainty_and_gains_stay_within_their_ends() -> None:
    unseen = 1 - 0.025 ** (1 / 8)
    assert accuracy_interval([0.5] * 8)[:3] == pytest.approx(
        (0.5, 0.5 - 0.5 * unseen, 0.5 + 0.5 * unseen)
    )
    assert gain_interval([0.5] * 8)[:3] == pytest.approx(
        (0.5, 0.5 - 1.5 * unseen, 0.5 + 0.5 * unseen)
    )
    assert gain_interval([-0.25, 1.0])[1:3] == (-1.0, 1.0)
    assert gain_interval([0.5])[1] < -0.9
    assert gain_interval([0.0, 0.5, 0.25, 0.25]) == mean_interval([0.0, 0.5, 0.25, 0.25])


def test_differences_over_runs_stay_within_their_ends() -> None:
    """Two runs that could hardly differ more: t with one degree of freedom reaches far beyond what
    an accuracy can be.
    """
    questions = list("rrrrrw"), list("wwwwwr")
    first = dataclasses.replace(cell(list("wwwwww")), runs=[games("a", list("wwwwww"))])
    second = dataclasses.replace(
        cell(list("rrrrrw"), "x,y"), runs=[games("a", q) for q in questions]
    )
    found = report.difference(first, second)
    assert found is not None
    assert -1 <= found["low"] < found["high"] <= 1


@pytest.mark.parametrize("n", [2, 5, 8, 12, 30])
def test_sign_flips_keep_their_level_with_few_questions(n: int) -> None:
    rng = np.random.default_rng(n)
    alarms = 0
    trials = 500
    for trial in range(trials):
        alarms += (
            sign_flips(
                list(rng.choice([-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1], n)), trial, 666
            )
            < 0.05
        )
    assert alarms / trials < 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


def test_few_questions_on_which_all_agree_are_no_certainty() -> None:
    three_runs = dataclasses.replace(cell(list("wwwww")), runs=[games("a", list("wwwww"))] * 3)
    assert report.accuracy(three_runs) == wilson(0, 5)
    one = dataclasses.replace(
        cell(list("r")), runs=[games("a", ["r"]), games("a", ["w"]), games("a", ["w"])]
    )
    assert report.accuracy(one) == (pytest.approx(1 / 3), 0.0, 1.0, 1)
    assert report.accuracy(cell(["rr", "ww", "rr"], agents="ab")) == wilson(2, 3)
    better = report.difference(
        cell(["ww", "ww"], agents="ab"), cell(["rr", "rr"], "B", agents="ab")
    )
    assert better is not None
    assert better["p"] == 0.5
    twice = report.difference(
        dataclasses.replace(three_runs, system="x,y,z"),
        dataclasses.replace(three_runs, system="u,v,w"),
    )
    assert twice is not None
    assert twice["low"] < -0.3


def test_two_steps_of_the_same_runs_are_compared_run_by_run() -> None:
    rng = np.random.default_rng(0)
    runs = rng.uniform(0.2, 0.8, 3)  # which differ far more than their steps do
    early = [(rng.random(60) < run).astype(float) for run in runs]
    late = [np.where(rng.random(60) < 0.15, 1.0, before) for before in early]

    def of(step: int, answers: list[Any]) -> CellReport:
        system = ",".join(f"runs/{name}@{step}" for name in "abc")
        runs = [games("a", ["r" if right else "w" for right in run]) for run in answers]
        return CellReport(system, "t", "single", "?", 60, runs, ["tiny"] * 3)

    paired = report.difference(of(10, early), of(40, late))
    assert paired is not None
    assert paired["test"] == "t over runs and questions, paired"
    assert paired["p"] < 0.01
    assert report.runs_of("me@lab/a@best,me@lab/b@40,c@d") == ["me@lab/a", "me@lab/b", "c@d"]
    other = dataclasses.replace(of(40, late), system="runs/d,runs/e,runs/f")
    apart = report.difference(of(10, early), other)
    assert apart is not None
    assert apart["p"] > 0.05


def test_systems_of_one_name_are_told_apart() -> None:
    assert report.label("x/final", ["x/final", "y/final", "tiny"]) == "x/final"
    assert report.label("x/final", ["x/final", "tiny"]) == "final"
    assert report.label("runs/a,runs/b", ["runs/a,runs/b", "tiny"]) == "2 runs (a to b)"


@pytest.mark.parametrize("questions", [3, 10, 80])
def test_false_alarms_and_coverage_of_a_difference_by_simulation(questions: int) -> None:
    rng = np.random.default_rng(questions)
    alarms = 0
    covered = 0
    trials = 400
    for trial in range(trials):
        differences = rng.choice([-0.5, 0.0, 0.5], questions, p=[0.25, 0.5, 0.25]).tolist()
        interval = gain_interval(differences)
        alarms += sign_flips(differences, trial, 666) < 0.05
        covered += interval.low <= 0 <= interval.high
    error = 3 * (0.05 * 0.95 / trials) ** 0.5
    assert alarms / trials < 0.05 + error
    assert covered / trials > 0.95 - error


def test_a_table_of_ten_alarms_as_rarely_as_one_comparison() -> None:
    rng = np.random.default_rng(2)
    families = 0
    plain = 0
    for _ in range(400):
        p = [
            mcnemar(*map(int, np.bincount(rng.integers(0, 2, 60), minlength=2))) for _ in range(10)
        ]
        families += min(holm(p)) < 0.05
        plain += min(p) < 0.05
    assert families / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5
    assert plain / 400 > 0.2


# --- cells

TURN = {
    "agent": "a",
    "role": "solution",
    "round": 0,
    "tokens": 10,
    "prompt_tokens": 5,
    "seconds": 0.5,
    "finished": True,
}
COST = {key: value for key, value in TURN.items() if key != "finished"}
NAMES = {"r": "right", "w": "wrong", "f": "failed"}


def games(agents: str, right: list[str], tokens: int = 10) -> list[dict[str, Any]]:
    """`right` per question: r, w or f, one letter per agent."""
    return [
        {
            "id": f"{a}/q{i}",
            "question": f"q{i:02d}",
            "agent": a,
            "verdict": NAMES[v],
            "error": None,
            "answer": "x",
            "turns": [{**TURN, "tokens": tokens}],
        }
        for i, word in enumerate(right)
        for a, v in zip(agents, word, strict=True)
    ]


def cell(
    right: list[str],
    system: str = "A",
    agents: str = "a",
    setup: str = "single",
    tokens: int = 10,
    runs: int = 1,
) -> CellReport:
    return CellReport(
        system,
        "t",
        setup,
        "?",
        len(right) * len(agents),
        [games(agents, right, tokens)] * runs,
        ("tiny",) * runs,
    )


def test_single_answers_are_compared_by_mcnemar_and_failures_are_left_out() -> None:
    first = cell(list("wwwwwwwwwrf"))
    second = cell(list("rrrrrrrrrrr"), "B")
    found = report.difference(first, second)
    assert found is not None
    assert (found["n"], found["test"]) == (10, "McNemar, exact")
    assert found["p"] == pytest.approx(2 / 2**9)
    swapped = report.difference(second, first)
    assert swapped is not None
    assert swapped["difference"] == -found["difference"]
    assert [d["verdict"] for d in report.corrected([found, swapped])] == ["better", "worse"]
    assert [d["verdict"] for d in report.corrected([found] * 40)] == ["none shown"] * 40
    assert report.difference(first, cell(list("fffffffffrr"), "B")) is None


def test_teams_are_compared_by_their_share_of_right_answers() -> None:
    first = cell(["rw", "ww", "rr"] * 8, agents="ab")
    second = cell(["rrw", "wwf", "rrr"] * 8, "B", agents="cde")
    found = report.difference(first, second)
    assert found is not None
    assert found["test"] == "sign flips"
    assert found["difference"] == pytest.approx((2 / 3 - 1 / 2) / 3)
    alone = report.difference(cell(list("rww") * 8), second)  # whose shares are no verdicts
    assert alone is not None
    assert alone["test"] == "sign flips"


def test_several_runs_are_a_level_of_their_own() -> None:
    right = ["rr", "rw", "wr", "ww", "rr"] * 6
    runs = [games("a", [w[i] for w in right]) for i in range(2)]
    team = dataclasses.replace(cell(list("r")), runs=runs, planned=30, bases=("tiny", "tiny"))
    found = report.accuracy(team)
    assert found is not None
    assert found[:3] == pytest.approx(two_level(report.table(team.shares()))[0][:3])
    against = report.difference(cell(["w"] * 30, "B"), team)
    assert against is not None
    assert against["test"] == "t over runs and questions"
    # the same runs in two ways
    again = report.difference(dataclasses.replace(team, setup="vote"), team)
    assert again is not None
    assert (again["test"], again["difference"], again["p"]) == (
        "t over runs and questions, paired",
        0.0,
        1.0,
    )
    assert again["high"] == -again["low"] == pytest.approx(1 - 0.025 ** (1 / 30))
    team = dataclasses.replace(team, system="runs/1,runs/2")
    (note,) = report.notes([team, dataclasses.replace(team, setup="vote")])
    assert "2 runs (1 to 2) of one base model (tiny)" in note
    assert "nothing of other base models" in note
    other = dataclasses.replace(team, bases=("tiny", "tiny-b"))
    assert (
        "(1 to 2) of 2 base models (tiny, tiny-b); intervals are over runs and questions"
        in report.notes([other])[0]
    )


def test_gains_are_of_the_agents_that_were_measured_both_times() -> None:
    before = [
        {"question": "q", "agent": agent, "verdict": verdict}
        for agent, verdict in (("a", "right"), ("gone", "wrong"))
    ]
    found = paired_gain(before, before[:1])
    assert found is not None
    assert found.mean == 0.0


def test_a_cell_as_json() -> None:
    said = report.cell_record(dataclasses.replace(cell(["rw", "fr", "ww"], agents="ab"), planned=8))
    assert (said["n"], said["right"], said["wrong"], said["failed"]) == (3, 2, 3, 1)
    assert said["complete"] == 6 / 8
    broken = dataclasses.replace(cell(list("rrw")), planned=3)
    failed = [{**record, "verdict": "failed", "error": "down"} for record in broken.runs[0][:2]]
    half = dataclasses.replace(broken, runs=[[*failed, broken.runs[0][2]]])
    assert report.cell_record(half)["complete"] == 1 / 3, "what a machine failed is not there"
    assert said["accuracy"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert (said["tokens"], said["prompt_tokens"]) == (60, 30)
    assert said["cost"] == [{**COST, "turns": 6, "prompt_tokens": 30, "tokens": 60, "seconds": 3.0}]
    assert said["failures"] == [{"question": "q01", "agent": "a", "answer": "x", "error": None}]
    single = report.cell_record(cell(list("rrw")))
    assert (single["accuracy"], single["low"], single["high"]) == pytest.approx(wilson(2, 3)[:3])
    nothing = report.cell_record(cell(list("ff")))
    assert (nothing["accuracy"], nothing["low"]) == (None, None)


def test_a_difference_is_shown_where_its_p_is_below_the_level() -> None:
    found = [report.verdict(0.1, p) for p in (0.0499, 0.05)]
    assert found == ["better", "none shown"]


def test_failures_are_told() -> None:
    broken = games("a", ["f", "f", "r"])
    broken[0]["error"] = "out of memory"
    (note,) = report.notes([dataclasses.replace(cell(list("ffr")), runs=[broken])])
    assert "2 of 3 answers failed and count nowhere; 1 by a machine, the first: out" in note
    assert "the checker could not decide" in report.notes([cell(list("fr"))])[0]


def test_costs_are_told_apart_by_agent_role_and_round() -> None:
    turns = [
        {**TURN, "agent": a, "role": r, "round": n}
        for a in "ab"
        for r in ("solution", "scoring")
        for n in (0, 1, 1)
    ]
    told = cost(turns)
    assert [(row["agent"], row["role"], row["round"], row["turns"]) for row in told] == [
        (a, r, n, n + 1) for a in "ab" for r in ("scoring", "solution") for n in (0, 1)
    ]
    assert sum(row["tokens"] for row in told) == 120


def test_against_whom_cells_are_compared() -> None:
    cells = [cell(list("rwrw"), s, setup=w) for s in "ABC" for w in ("single", "vote")]
    systems = [
        (d["first"]["system"], d["second"]["system"], d["second"]["setup"])
        for d in report.against_first("system", cells)
    ]
    assert systems == [("A", s, w) for w in ("single", "vote") for s in "BC"]
    setups = [
        (d["first"]["setup"], d["second"]["system"], d["second"]["setup"])
        for d in report.against_first("setup", cells)
    ]
    assert setups == [("single", s, "vote") for s in "ABC"]
    assert report.against_first("system", []) == []


@pytest.mark.parametrize("value", [1 / 3, -0.2, 0.7])
def test_differences_that_are_equal_but_for_rounding_are_equal(value: float) -> None:
    rounded = [value, value + 1 - 1, value * 3 / 3, (value + 2 / 3) - 2 / 3] * 3
    assert len(set(rounded)) > 1
    found = gain_interval(rounded)[1:3]
    assert found == pytest.approx(gain_interval([value] * 12)[1:3])
    assert gain_interval([*rounded[:-1], value + 0.1])[1:3] != pytest.approx(found)


@pytest.mark.parametrize(("n", "right", "k"), [(2, 0, 5), (0, 0, 1), (3, 1, 0)])
def test_more_answers_than_there_are_cannot_be_drawn(n: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {n}"):
        pass_at(n, right, k)


def test_a_cell_of_several_runs_is_complete_where_all_of_them_are() -> None:
    assert report.cell_record(cell(list("rwr"), runs=2))["complete"] == 1.0


def test_where_only_runs_differ_systems_are_compared_by_welchs_test() -> None:
    one, other = [0.1, 0.4, 0.2], [0.6, 0.5, 0.9, 0.7]
    tables = [[[run] * 50 for run in system] for system in (one, other)]
    _, p = two_level_difference(*tables)
    assert p == pytest.approx(stats.ttest_ind(other, one, equal_var=False).pvalue)


def test_two_runs_have_no_more_degrees_of_freedom_than_their_sum_of_squares() -> None:
    # MS of runs 0, of questions 1/6, of the rest 1/3: by Satterthwaite less than one
    found, _ = two_level([[0, 1, 1, 1], [1, 1, 1, 0]])
    assert found.high - found.mean == pytest.approx(12.7062047 * (1 / 6 / 8) ** 0.5)


def test_sign_flips_of_thirteen_differences_are_all_flipped() -> None:
    assert sign_flips([1.0] * 13) == 2 / 2**13  # sampled it would be no less than 1 / 10,000


@pytest.mark.parametrize("n", [2, 6, 20])
def test_equal_differences_have_the_p_of_mcnemar(n: int) -> None:
    assert two_level_difference([[0.0] * n], [[1.0] * n])[1] == mcnemar(n, 0)
    assert two_level([[0.5] * n] * 3)[1] == mcnemar(n, 0)
