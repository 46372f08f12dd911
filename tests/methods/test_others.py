"""Judges are compared with other policies, never with themselves; answers by what they say."""

from __future__ import annotations

import random
from collections import Counter
from statistics import fmean
from types import ModuleType

import pytest

from comas.config.plugins import load_plugin
from comas.game.votes import by_answer
from comas.methods import comas_agree, comas_peer
from comas.methods.comas_votes import chosen_works
from comas.tasks import pick
from comas.types import Episode, Question, Turn
from tests.support.games import turn as turn_of

MATHS = load_plugin("task", "math500")
WORKS = 600
EVALUATIONS = 3


def coins(policies: list[str], seed: int = 0) -> list[Episode]:
    """Works that are each scored three times by an agent that is drawn anew; agents of one policy
    say the same of the same work, by a fair coin.
    """
    rng = random.Random(seed)
    episodes: list[Episode] = []
    for work in range(WORKS):
        says = {policy: rng.choice([1, 3]) for policy in policies}
        solution = Turn(f"{work}/s", "a", "h/a", "solution", "", "", True, 0)
        solution.info["readable"] = True
        turns = [solution]
        for place in range(EVALUATIONS):
            policy = rng.choice(policies)
            scoring = Turn(f"{work}/c{place}", "j", policy, "scoring", "", "", True, 0)
            scoring.about = solution.id
            scoring.info["score"] = says[policy]
            turns.append(scoring)
        episodes.append(Episode(str(work), Question(id=str(work), prompt=""), turns))
    return episodes


def rewards_of(method: ModuleType, policies: list[str]) -> list[float | None]:
    episodes = coins(policies)
    method.settle(episodes, pick.task)
    return [t.reward for e in episodes for t in e.turns if t.role == "scoring"]


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_peer_prediction_pays_a_coin_nothing_and_agreement_pays_it_half(count: int) -> None:
    policies = [f"h/p{place}" for place in range(count)]
    peer = [r for r in rewards_of(comas_peer, policies) if r is not None]
    agree = [r for r in rewards_of(comas_agree, policies) if r is not None]
    # five standard errors of rewards between -.5 and .5, three of which share a work
    assert abs(fmean(peer)) < 5 * 0.5 * (3 / len(peer)) ** 0.5
    assert abs(fmean(agree) - 0.5) < 5 * 0.5 * (3 / len(agree)) ** 0.5


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("method", [comas_peer, comas_agree])
def test_agents_of_one_policy_are_one_judge_whom_nobody_pays(
    method: ModuleType, count: int
) -> None:
    assert rewards_of(method, ["h/shared"] * count) == [None] * (WORKS * EVALUATIONS)


def test_two_policies_of_four_agents_are_two_judges() -> None:
    shared = rewards_of(comas_peer, ["h/one", "h/one", "h/two", "h/two"])
    apart = rewards_of(comas_peer, ["h/one", "h/two"])
    unpaid = [Counter(reward is None for reward in rewards)[True] for rewards in (shared, apart)]
    # all three scorings are by one policy in a quarter of the works
    for count in unpaid:
        assert count / (WORKS * EVALUATIONS) == pytest.approx(0.25, abs=0.03)


def solutions(answers: list[str | None]) -> list[Turn]:
    turns = [turn_of(f"s{place}", "a", None) for place in range(len(answers))]
    for turn, answer in zip(turns, answers, strict=True):
        turn.info["answer"] = answer
    return turns


SPELT = ["5", "5", "5", "5", r"\frac{1}{2}", "0.5", "1/2", "7", "7", None]


def test_the_rarest_other_answer_counts_answers_and_not_spellings() -> None:
    turns = solutions(SPELT)
    groups = by_answer(turns, MATHS)
    assert [len(group) for group in groups] == [4, 3, 2]
    for seed in range(40):
        works = chosen_works(turns, random.Random(seed), MATHS, 1, "rarest", True)
        answers = {side: turn.info["answer"] for turn, side in works}
        assert answers == {True: "5", False: "7"}


def test_spellings_of_the_rarest_answer_are_all_drawn() -> None:
    turns = solutions(["5", "5", "5", "5", "0.25", "1/4", "7", "7", "7"])
    drawn = set()
    for seed in range(40):
        works = chosen_works(turns, random.Random(seed), MATHS, 1, "rarest", True)
        drawn |= {turn.info["answer"] for turn, side in works if not side}
    assert drawn == {"0.25", "1/4"}
