"""CoMAS with paid judges: who is rewarded for which score, and that both keep the contract."""

from __future__ import annotations

import asyncio
import dataclasses
from types import ModuleType

import pytest

from comas.config.plugins import load_plugin
from comas.methods import comas_agree, comas_peer, comas_rules, mae
from comas.tasks import pick
from comas.testing import check_method, golden_script
from comas.types import COMMON_KINDS, Episode, Turn

OFFERS = [(1, 2, 4, 6), (5, 2, 4, 8), (9, 1, 2, 4)]
QUESTIONS = [pick.make_question(offer, 11 if 5 in offer else 7, "three") for offer in OFFERS]
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "2 + 4 = 6 + 6 = 12"
GAMES = {
    "comas_agree": {"evaluations": 3},
    "comas_rules": {"evaluations": 2},
}


def turn(
    name: str, role: str, text: str, about: str | None, policy: str = "h/a", **info: object
) -> Turn:
    return Turn(
        name,
        "a",
        policy,
        role,
        "",
        text,
        True,
        0,
        about=about,
        info=dict(info),
        kind=COMMON_KINDS.get(role, "other"),
    )


def judged(work: str, *scores: int | None) -> Episode:
    """A solution with a criticism and a scoring for each score."""
    turns = [turn("s", "solution", work, None, readable=True)]
    for place, score in enumerate(scores):
        turns.append(turn(f"e{place}", "evaluation", "", "s", f"h/e{place}"))
        scored = turn(f"c{place}", "scoring", "", f"e{place}", f"h/j{place}", score=score)
        turns.append(scored)
    return Episode("e", QUESTIONS[0], turns)


def pay(episode: Episode) -> dict[str, float | None]:
    return {said.id: said.reward for said in episode.turns}


@pytest.mark.parametrize("name", sorted(GAMES))
def test_contract(name: str) -> None:
    method = load_plugin("method", name)
    check_method(method, pick.task, QUESTIONS, golden_script, samples=2, options=GAMES[name])


def test_agreeing_judges_are_paid_and_divided_ones_are_not() -> None:
    found = judged(RIGHT, 3, 3, 1)
    comas_agree.settle([found], pick.task)
    assert pay(found) == {
        "s": pytest.approx(2 / 3),
        "e0": None,
        "c0": None,
        "e1": None,
        "c1": None,
        "e2": 0.0,
        "c2": 0.0,
    }
    three = judged(RIGHT, 3, 3, 3, None)
    comas_agree.settle([three], pick.task)
    paid = pay(three)
    assert [paid[f"c{place}"] for place in range(4)] == [1.0, 1.0, 1.0, -1.0]
    assert paid["e3"] is None


@pytest.mark.parametrize(
    ("work", "paid"), [(RIGHT, [1.0, 0.5, 0.0, -1.0]), (WRONG, [0.0, 0.5, 1.0, -1.0])]
)
def test_the_rules_pay_judges(work: str, paid: list[float]) -> None:
    found = judged(work, 3, 2, 1, None)
    comas_rules.settle([found], pick.task)
    said = pay(found)
    assert [said[f"c{place}"] for place in range(4)] == paid
    assert [said[f"e{place}"] for place in range(4)] == [*paid[:3], None]
    assert said["s"] == 0.5


def test_a_game_that_changes_its_record_breaks_the_contract() -> None:
    async def play(question, agents, rng, task, *, state):  # type: ignore[no-untyped-def]
        state["pool"].append(question.prompt)
        await asyncio.sleep(0)
        return (await agents[0].ask("solution", question.prompt)).text

    spoilt = dataclasses.replace(mae.method, play=play, settle=lambda episodes, task: None)
    with pytest.raises(AssertionError, match="the state was changed"):
        check_method(spoilt, pick.task, QUESTIONS, golden_script)


def criticised(
    critic: str, scorer: str, score: int | None, *others: tuple[str, int], work: str = "s"
) -> Episode:
    """A solution that is scored after a criticism, and by others without one; a judge that is named
    `critic>scorer` scores after a criticism too.
    """
    turns = [
        turn(work, "solution", RIGHT, None, readable=True),
        turn(f"{work}e", "evaluation", "", work, f"h/{critic}"),
        turn(f"{work}c", "scoring", "", f"{work}e", f"h/{scorer}", score=score),
    ]
    for place, (judges, said) in enumerate(others):
        *critics, judge = judges.split(">")
        about = work
        for other in critics:
            about = f"{work}p{place}"
            turns.append(turn(about, "evaluation", "", work, f"h/{other}"))
        turns.append(turn(f"{work}o{place}", "scoring", "", about, f"h/{judge}", score=said))
    return Episode(work, QUESTIONS[0], turns)


SAME_HAND = {
    "the critic scores": "a1",
    "the scorer scores again": "a2",
    "the critic criticises for another scorer": "a1>a3",
    "the scorer criticises": "a2>a3",
    "the scorer follows another critic": "a3>a2",
}


@pytest.mark.parametrize("dependent", SAME_HAND.values(), ids=SAME_HAND)
@pytest.mark.parametrize("method", [comas_agree, comas_peer])
def test_scores_that_one_policy_had_a_part_in_do_not_bear_each_other_out(
    method: ModuleType, dependent: str
) -> None:
    alone = criticised("a1", "a2", 1, (dependent, 1), (dependent, 1))
    method.settle([alone], pick.task)
    assert (pay(alone)["sc"], pay(alone)["se"]) == (None, None)
    elsewhere = [
        criticised("a1", "a2", 1, ("a4", 1), work="t"),
        criticised("a1", "a2", 3, ("a4", 1), work="u"),
    ]
    said = []
    for score in (1, 3):
        found = criticised("a1", "a2", 3, (dependent, score), (dependent, score), ("a4", 3))
        method.settle([found, *elsewhere], pick.task)
        said.append((pay(found)["sc"], pay(found)["se"]))
    assert said[0] == said[1]
    assert said[0][0] == said[0][1] is not None


def test_of_peers_one_whose_scores_cannot_be_read_says_nothing() -> None:
    found = criticised("a1", "a3", None, ("a2", 3))
    more = criticised("a1", "a2", 1, ("a4", 3), work="t")
    comas_peer.settle([found, more], pick.task)
    paid = pay(found)
    assert (paid["sc"], paid["se"], paid["so0"]) == (-1.0, None, None)
