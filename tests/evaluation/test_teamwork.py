"""What teams make of their members: identities that hold exactly, closed forms, and nothing where
there are no data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.evaluation import teams as figures_of
from comas.evaluation.games import noted, revisions
from comas.evaluation.report import CellReport
from comas.evaluation.teams import teamwork
from comas.stats import (
    Interval,
    accuracy_interval,
    delta_interval,
    mean_interval,
    ratio_interval,
    share_interval,
    two_level,
)
from comas.tasks import pick
from comas.types import Question

Q = pick.make_question((1, 2, 4, 10), 7, "three")
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "1 + 2 = 3 + 10 = 13"


def said(name: str, agent: str, text: str = RIGHT, **more: Any) -> dict[str, Any]:
    """A recorded turn; `about` is what stands before the last dot of its name."""
    about = name.rpartition(".")[0] or None
    role = more.pop("role", "solution" if about is None else "revision")
    fields = {"prompt": "p", "finished": True, "tokens": 10, "round": 0, "policy": f"h/{agent}"}
    return {
        "id": name,
        "agent": agent,
        "role": role,
        "text": text,
        "about": about,
        **fields,
        **more,
    }


def played(question: str, verdict: str, turns: Sequence[Any] = (), **more: Any) -> dict[str, Any]:
    record = {"question": question, "agent": "team", "verdict": verdict, "error": None}
    return {**record, "turns": list(turns), **more}


def cell(setup: str, *runs: Sequence[Mapping[str, Any]], system: str = "s") -> CellReport:
    return CellReport(system, "pick", setup, "a team", len(runs[0]), [list(run) for run in runs])


# --- intervals of ratios


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_a_share_is_that_of_the_pooled_cases(pairs: list[tuple[int, int]]) -> None:
    tops = [min(pair) for pair in pairs]
    bottoms = [max(pair) for pair in pairs]
    found = share_interval([tops], [bottoms])
    if sum(bottoms) == 0:
        assert found is None
        return
    assert found is not None
    assert found.mean == pytest.approx(sum(tops) / sum(bottoms))
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.n == sum(bottom > 0 for bottom in bottoms)


def test_questions_without_a_case_say_nothing_of_a_shares_spread() -> None:
    tops, bottoms = [1.0, 0.0, 2.0, 1.0], [1.0, 2.0, 2.0, 1.0]
    alone = share_interval([tops], [bottoms])
    assert share_interval([[*tops, *[0.0] * 96]], [[*bottoms, *[0.0] * 96]]) == alone


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_of_one_case_per_question_it_is_the_interval_of_an_accuracy(right: list[bool]) -> None:
    values = [float(each) for each in right]
    expected = accuracy_interval(values)
    found = share_interval([values], [[1.0] * len(values)])
    assert found == pytest.approx(expected)
    of_two = two_level([values, values[::-1]])[0] if len(set(values)) > 1 else None
    pair = share_interval([values, values[::-1]], [[1.0] * len(values)] * 2)
    assert pair is not None
    if of_two is not None and len({a + b for a, b in zip(values, values[::-1], strict=True)}) > 1:
        assert pair[:2] == pytest.approx((of_two.mean, max(0.0, of_two.low)))


def test_a_ratio_by_hand_and_the_delta_method_of_a_linear_function() -> None:
    tops = [[2.0, 4.0, 9.0]]
    bottoms = [[1.0, 2.0, 3.0]]
    found = ratio_interval(tops, bottoms)
    residuals = [(top - 2.5 * bottom) / 2.0 for top, bottom in zip(*tops, *bottoms, strict=True)]
    centred = mean_interval(residuals)
    assert found == pytest.approx((2.5, 2.5 + centred.low, 2.5 + centred.high, 3))
    linear = delta_interval(2 * 5.0 - 2.0, (2.0, -1.0), (tops, bottoms))
    expected = mean_interval([2 * 2.0 - 1, 2 * 4.0 - 2, 2 * 9.0 - 3])
    assert linear == pytest.approx(expected)
    assert delta_interval(3.0, (1.0,), ([[4.0, 4.0]],))[:3] == (3.0, 3.0, 3.0)
    assert math.isinf(ratio_interval([[2.0]], [[1.0]]).high)
    assert math.isinf(ratio_interval([[2.0], [3.0]], [[1.0], [1.0]]).high)


def test_intervals_of_shares_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        chances = rng.beta(2, 2, 60)  # questions differ: cases of one are alike
        bottoms = rng.integers(0, 5, 60)
        tops = rng.binomial(bottoms, chances)
        found = share_interval([tops.tolist()], [bottoms.tolist()])
        assert found is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.92 <= covered / 400 <= 0.98


# --- what is noted of a game


def test_single_turns_note_nothing() -> None:
    assert noted(pick.task, Q, [said("s", "a")], {}) == {}
    assert noted(pick.task, Q, [said("s", "a"), said("t", "b", WRONG)], {}) == {}


def test_revisions_are_of_answers_by_the_same_agent() -> None:
    turns = [
        said("s", "a"),
        said("s.r", "a"),
        said("s.r.r", "a"),
        said("s.e", "a", role="evaluation"),
        said("s.x", "b", role="revision"),
        said("t", "b"),
    ]
    pairs = [(before["id"], after["id"]) for before, after in revisions(turns)]
    assert pairs == [("s", "s.r"), ("s.r", "s.r.r")]


def test_calls_of_tools_are_no_answers() -> None:
    turns = [
        said("s", "a", info={"call": {"tool": "search"}}),
        said("s.d1", "a", about="s", info={"unanswered": "search"}),
        said("s.d2", "a", about="s.d1"),
        said("s.r", "a", about="s.d2"),
        said("t", "b", info={"call": {"tool": "search"}}),
    ]
    pairs = [(before["id"], after["id"]) for before, after in revisions(turns)]
    assert pairs == [("s.d2", "s.r")]


def test_texts_are_judged_once_and_cut_replies_are_wrong() -> None:
    asked: list[str] = []

    def verify(question: Question, text: str) -> Any:
        asked.append(text)
        return pick.verify(question, text)

    task = replace(pick.task, verify=verify)
    turns = [
        said("s", "a", WRONG),
        said("s.r", "a", RIGHT),
        said("s.r.r", "a", WRONG),
        said("s.r.r.r", "a", "1 + 2 = 3 +", finished=False),
    ]
    found = noted(task, Q, turns, {RIGHT: "right"})
    assert found == {
        "verdicts": {"s": "wrong", "s.r": "right", "s.r.r": "wrong", "s.r.r.r": "wrong"}
    }
    assert asked == [WRONG]


# --- confidence and critique


def revising(question: str, *pairs: tuple[bool, bool]) -> dict[str, Any]:
    """A game with such changes, each by an agent of its own."""
    turns: list[Any] = []
    verdicts: dict[str, str] = {}
    for place, pair in enumerate(pairs):
        for name, right in zip((f"s{place}", f"s{place}.r"), pair, strict=True):
            turns.append(said(name, f"a{place}"))
            verdicts[name] = "right" if right else "wrong"
    return played(question, "right", turns, verdicts=verdicts)


CHANGES = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=4)


@settings(deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=12))
def test_accuracy_after_follows_exactly_from_confidence_and_critique(games: Any) -> None:
    found = cell("debate", [revising(f"q{i}", *pairs) for i, pairs in enumerate(games)])
    counts = figures_of.revision_counts(found)
    figures = figures_of.revision_figures(found)
    n = counts["revised"]
    assert n == sum(map(len, games))
    if n == 0:
        assert figures == {}
        return
    before = Fraction(counts["right_before"], n)
    wrong = n - counts["right_before"]
    after = Fraction(counts["kept"] + counts["mended"], n)
    confidence = Fraction(counts["kept"], counts["right_before"]) if before else Fraction(0)
    critique_score = Fraction(counts["mended"], wrong) if wrong else Fraction(0)
    assert after == before * confidence + (1 - before) * critique_score
    assert figures["accuracy before"].mean == pytest.approx(float(before), abs=1e-15)
    assert figures["accuracy after"].mean == pytest.approx(float(after), abs=1e-15)
    assert ("confidence" in figures) == bool(before)
    assert ("critique" in figures) == bool(wrong)
    if before:
        assert figures["confidence"].mean == pytest.approx(float(confidence), abs=1e-15)
    if wrong:
        assert figures["critique"].mean == pytest.approx(float(critique_score), abs=1e-15)


def test_changes_that_could_not_be_judged_are_left_out() -> None:
    game = revising("q", (True, True), (False, True))
    game["verdicts"]["s1.r"] = "failed"
    assert figures_of.revision_counts(cell("debate", [game]))["revised"] == 1
    del game["verdicts"]
    assert figures_of.revision_figures(cell("debate", [game])) == {}, "an evaluation of before"


# --- coordination


def alone(question: str, tokens: int = 10, agents: Sequence[str] = ("a",), **verdicts: str) -> Any:
    """Single answers of agents to a question; right unless a verdict says otherwise."""
    return [
        played(
            question, verdicts.get(agent, "right"), [said("s", agent, tokens=tokens)], agent=agent
        )
        for agent in agents
    ]


def test_coordination_by_hand() -> None:
    games = [
        played("q0", "right", [said("s", "a", tokens=30), said("s.r", "b", tokens=10)]),
        played("q1", "wrong", [said("s", "a", tokens=20)]),
    ]
    singles = cell("single", [*alone("q0"), *alone("q1", 20, a="wrong")])
    team = cell("debate", games)
    found = figures_of.coordination_figures(team, [team, singles])
    assert found["overhead"].mean == pytest.approx(60 / 30 - 1)
    assert found["error amplification"].mean == pytest.approx(1.0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(1, 50), st.integers(1, 50)),
        min_size=2,
        max_size=12,
    )
)
def test_identities_of_coordination(answers: list[tuple[bool, bool, int, int]]) -> None:
    word = {True: "right", False: "wrong"}
    games: list[Any] = []
    singles: list[Any] = []
    for i, (right, right_alone, tokens, tokens_alone) in enumerate(answers):
        games.append(played(f"q{i:02}", word[right], [said("s", "a", tokens=tokens)]))
        singles += alone(f"q{i:02}", tokens_alone, a=word[right_alone])
    team = cell("vote", games)
    found = figures_of.coordination_figures(team, [cell("single", singles)])
    accuracy = sum(a[0] for a in answers) / len(answers)
    wrong_alone = 1 - sum(a[1] for a in answers) / len(answers)
    if wrong_alone:
        amplified = found["error amplification"].mean
        assert amplified * wrong_alone == pytest.approx(1 - accuracy)
    else:
        assert "error amplification" not in found
    for interval in found.values():
        assert interval.low <= interval.mean <= interval.high


def test_only_questions_that_both_were_judged_on_count() -> None:
    team = cell("vote", [played("q0", "right"), played("q1", "failed"), played("q2", "wrong")])
    singles = cell("single", [*alone("q0"), *alone("q1"), *alone("q2", a="failed")])
    beside = figures_of.coordination_figures
    assert beside(team, [singles])["overhead"].n == 1, "q0 alone"
    assert beside(team, [team]) == {}
    elsewhere = cell("single", alone("q0"), system="other")
    assert beside(team, [elsewhere]) == {}
    nothing = cell("single", alone("q9"))
    assert beside(team, [nothing]) == {}
    twice = cell("single", alone("q0"), alone("q0"))
    assert beside(team, [twice]) == {}, "of other runs"


# --- the report


def test_the_report_leaves_out_what_has_no_data() -> None:
    singles = cell("single", alone("q0"), system="s")
    vote = cell("vote", [played("q0", "right", [said("s", "a"), said("t", "b")])])
    debate = cell("debate", [revising("q0", (True, True), (True, False))], system="other")
    (of_vote, of_debate) = teamwork([singles, vote, debate])
    assert of_vote["setup"] == "vote"
    assert set(of_vote["figures"]) == {"overhead"}
    assert of_vote["figures"]["overhead"] == {"mean": 1.0, "low": -1.0, "high": None, "n": 1}
    assert "revisions" not in of_vote
    assert set(of_debate["figures"]) == {"accuracy before", "accuracy after", "confidence"}
    assert of_debate["revisions"] == {"revised": 2, "right_before": 2, "kept": 1, "mended": 0}
    assert teamwork([singles]) == []


def test_several_runs_are_a_level_of_their_own() -> None:
    runs = [[revising(f"q{i}", (True, i % (s + 2) == 0)) for i in range(6)] for s in range(3)]
    found = figures_of.revision_figures(cell("debate", *runs))["confidence"]
    table = [[float(i % (s + 2) == 0) for i in range(6)] for s in range(3)]
    expected = two_level(table)[0]
    assert found.mean == pytest.approx(expected.mean)
    assert found.high == pytest.approx(min(1.0, expected.high))


# --- where all questions say the same, their spread says nothing


UNSEEN = 1 - 0.025 ** (1 / 20)
"""So large a share of exceptions may stay unseen among twenty questions."""


def amplification(team: str, single: str) -> Interval:
    games = [played(f"q{i:02}", team, [said("s", "a")]) for i in range(20)]
    singles = [one for i in range(20) for one in alone(f"q{i:02}", a=single)]
    game = cell("vote", games)
    found = figures_of.coordination_figures(game, [cell("single", singles)])
    return found["error amplification"]


def test_errors_that_were_not_seen_may_be_there() -> None:
    found = amplification("right", "wrong")
    assert found.mean == 0.0
    assert (found.low, found.high) == pytest.approx((0.0, UNSEEN))
    found = amplification("wrong", "wrong")
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 1 - UNSEEN, 1 + UNSEEN))
    # alone one of two is wrong: twice as much, of which an exception may take all
    names = [f"q{i:02}" for i in range(20)]
    game = cell("vote", [played(name, "wrong", [said("s", "a")]) for name in names])
    halves = [one for name in names for one in alone(name, agents="ab", a="wrong")]
    found = figures_of.coordination_figures(game, [cell("single", halves)])["error amplification"]
    expected = (2.0, 2 - 4 * UNSEEN, 2 + 2 * UNSEEN)
    assert (found.mean, found.low, found.high) == pytest.approx(expected)


def test_shares_that_are_equal_but_for_rounding_have_no_spread() -> None:
    exact = share_interval([[0.3, 0.3, 0.3]], [[1, 1, 1]])
    rounded = share_interval([[0.3, 0.3, 0.1 + 0.2]], [[1, 1, 1]])
    assert rounded == exact
