"""The methods without judges: votes, verdicts, and what GRPO makes of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game import votes
from comas.game.agent import TeamMember
from comas.game.play import GameContext, play_all
from comas.methods import rlvr, ttrl
from comas.methods.shared.searching import gives
from comas.tasks import pick
from comas.testing import Scripted, cut, discuss
from comas.types import HostFailure, Method, Row, Turn, Verdict
from tests.support import runs

Q = pick.make_question((1, 2, 4, 5), 7, "three")
RIGHT = "1 + 2 = 3 + 4 = 7"
SAME = "4 + 1 = 5 + 2 = 7"
WRONG = "2 + 4 = 6 + 5 = 11"
OTHER = "1 + 2 = 3 + 5 = 8"
JUNK = "what ?"


def rewards(method: Method, said: list[Any], **setting: Any) -> list[float | None]:
    options = {"votes": len(said)}
    (episode,) = discuss(
        method, pick.task, {"solution": said}, [Q], agents=1, options=options, **setting
    )
    return [t.reward for t in episode.turns]


@pytest.mark.parametrize(
    ("said", "paid"),
    [
        ([RIGHT, SAME, WRONG], [1, 1, 0]),
        ([WRONG, WRONG, RIGHT], [1, 1, 0]),
        ([RIGHT, WRONG], [0, 0]),
        ([RIGHT, WRONG, JUNK, OTHER], [0, 0, 0, 0]),
        ([WRONG, RIGHT, SAME, WRONG], [0, 0, 0, 0]),
        ([JUNK, JUNK, RIGHT], [0, 0, 0]),
        ([JUNK, RIGHT, SAME], [0, 1, 1]),
        ([JUNK, JUNK], [0, 0]),
        ([cut(WRONG), cut(WRONG), RIGHT, SAME], [0, 0, 1, 1]),
        ([""], [0]),
        ([OTHER, RIGHT, WRONG, WRONG, RIGHT, OTHER, RIGHT], [0, 1, 0, 0, 1, 0, 1]),
        ([RIGHT], [0]),
    ],
)
def test_ttrl_pays_the_largest_readable_vote_and_nobody_where_there_is_none(
    said: list, paid: list[float]
) -> None:
    assert rewards(ttrl.method, said) == paid


@given(st.lists(st.sampled_from(["7", "8", "9", None]), max_size=12))
def test_majority_against_a_counter(answers: list[str | None]) -> None:
    counts = Counter(a for a in answers if a is not None)
    wanted = max(counts, key=lambda a: (counts[a], -answers.index(a))) if counts else None
    assert votes.majority(answers, pick.task) == wanted


def test_votes_are_compared_by_the_tasks_own_rule() -> None:
    task = replace(pick.task, same=lambda a, b: len(a) == len(b))
    assert votes.majority(["12", "345", "67", "8"], task) == "12"
    assert ttrl.agrees(
        Turn("i", "a", "h/a", "solution", "", "", True, 0, info={"answer": "67"}), "12", task
    )


def test_ttrl_deals_votes_evenly_and_groups_them_by_policy() -> None:
    (episode,) = discuss(ttrl.method, pick.task, {"solution": RIGHT}, [Q], options={"votes": 10})
    assert sorted(Counter(t.agent for t in episode.turns).values()) == [2, 2, 3, 3]
    assert {t.group for t in episode.turns} == {f"{episode.id}/script/a{i}" for i in range(4)}
    firsts = {
        discuss(ttrl.method, pick.task, {"solution": RIGHT}, [Q], seed=s)[0].turns[0].agent
        for s in range(20)
    }
    assert len(firsts) == 4


def test_rlvr_asks_one_agent_and_pays_the_verdict() -> None:
    assert rewards(rlvr.method, [RIGHT, SAME, WRONG, OTHER, JUNK, cut(RIGHT), ""]) == [
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]
    asked = set()
    for seed in range(20):
        (episode,) = discuss(rlvr.method, pick.task, {"solution": RIGHT}, [Q], seed=seed)
        assert len({t.agent for t in episode.turns}) == len({t.group for t in episode.turns}) == 1
        asked.add(episode.turns[0].agent)
    assert len(asked) == 4


def test_a_verifier_that_broke_down_pays_nothing() -> None:
    def verify(question: Any, text: str) -> Verdict:
        return "failed" if text == SAME else pick.verify(question, text)

    task = replace(pick.task, verify=verify)
    (episode,) = discuss(
        rlvr.method, task, {"solution": [RIGHT, SAME, WRONG]}, [Q], agents=1, options={"votes": 3}
    )
    assert [t.reward for t in episode.turns] == [1.0, None, 0.0]


@pytest.mark.parametrize("method", [ttrl.method, rlvr.method], ids=["ttrl", "rlvr"])
def test_only_solvers_are_asked_and_a_broken_machine_ends_one_discussion(method: Method) -> None:
    host = Scripted({"solution": RIGHT})
    members = [
        TeamMember("judge", host, "j", roles=("scoring",)),
        TeamMember("a", host, "a"),
        TeamMember("b", host, "b", roles=("solution",)),
    ]
    (episode,) = asyncio.run(play_all(GameContext(method, pick.task, members, 3), [Q], 0))
    assert "judge" not in {t.agent for t in episode.turns}

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        if "-> 7" in prompt:
            raise HostFailure("unplugged")
        return RIGHT

    episodes = discuss(method, pick.task, script, [Q, pick.make_question((1, 2, 4, 5), 8, "three")])
    assert [e.error and e.error.endswith(": unplugged") for e in episodes] == [True, None]


def test_votes_do_not_see_one_another() -> None:
    for method in (ttrl.method, rlvr.method):
        (episode,) = discuss(method, pick.task, {"solution": RIGHT}, [Q])
        assert {t.prompt for t in episode.turns} == {f"solve {Q.prompt}"}
        assert len({t.id for t in episode.turns}) == len(episode.turns)


def test_from_votes_to_advantages_by_hand() -> None:
    """Votes 1 1 0 0 0 of one policy: mean 0.4, standard deviation sqrt(0.24)."""
    found = runs.planned(["method=ttrl", "kl.solution=0"])
    config = found.config
    method = found.method
    assert config.questions == 24
    paid = rewards(ttrl.method, [RIGHT, SAME, WRONG, OTHER, JUNK])
    T = np.arange(3)
    rows = [
        Row(str(i), "solution", 1.0, T, T > 0, np.zeros(3), "g", float(r or 0))
        for i, r in enumerate(paid)
    ]
    got = [a.tolist() for a in method.credit(rows, method.kl)]
    high = 0.6 / 0.24**0.5
    low = -0.4 / 0.24**0.5
    np.testing.assert_allclose(got, [[0, high, high]] * 2 + [[0, low, low]] * 3, rtol=1e-9)


def test_what_they_declare() -> None:
    assert not ttrl.method.supervised
    assert rlvr.method.supervised
    assert ttrl.method.rewarded == rlvr.method.rewarded == ("solution",)


def test_a_call_that_nobody_answers_is_no_vote() -> None:
    """Its text may end in what looks like an answer: of a sum, the numbers to be added."""
    (episode,) = discuss(ttrl.method, pick.task, {"solution": RIGHT}, [Q], options={"votes": 2})
    first, second = episode.turns
    first.info["unanswered"] = "calculator"
    votes.read(Q, [first, second], pick.task)
    assert first.info["answer"] is None
    assert second.info["answer"] is not None
    assert not gives(Q, first, second.info["answer"], pick.task)
    assert gives(Q, second, second.info["answer"] or "", pick.task)
