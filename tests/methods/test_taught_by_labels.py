"""Methods that learn from labels besides RLVR: what STaR, Optima and SEC pay, tell and remember."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from comas.game.play import GameContext, play_all, settle_all
from comas.methods import optima, sec, star
from comas.tasks import pick
from comas.testing import Script, Table, cut, scripted_team
from comas.types import COMMON_KINDS, Episode, Question, Task, Turn
from tests.support import runs

Q = pick.make_question((1, 2, 4, 10), 7, "three")
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "1 + 2 = 3 + 10 = 13"


def turn(name: str, role: str = "solution", reward: float | None = None, **more: Any) -> Turn:
    return Turn(
        name,
        "a",
        "h/a",
        role,
        "",
        RIGHT,
        True,
        0,
        reward=reward,
        **more,
        kind=COMMON_KINDS.get(role, "other"),
    )


def starred(script: Script | Table, task: Task = pick.task, **options: Any) -> Episode:
    """One game of STaR, settled."""
    members, _ = scripted_team(script, 1)
    context = GameContext(star.method, task, members, 0, options)
    (episode,) = asyncio.run(play_all(context, [Q], 0))
    settle_all(context, [episode])
    return episode


def test_star_learns_right_solutions_and_asks_for_no_hint_where_there_is_one() -> None:
    found = starred({"solution": [WRONG, RIGHT]}, votes=2)
    assert [(t.role, t.reward) for t in found.turns] == [("solution", 0.0), ("solution", 1.0)]


def test_star_tells_what_a_hint_led_to_under_the_prompt_without_it() -> None:
    found = starred({"solution": WRONG, "hint": RIGHT}, votes=2)
    first, hinted, told, second = found.turns
    assert [t.role for t in found.turns] == ["solution", "hint", "solution", "solution"]
    assert hinted.prompt == f"solve {Q.answer} {Q.prompt}"
    assert told.prompt == first.prompt == f"solve {Q.prompt}"
    assert told.text == RIGHT
    assert told.info == {"told": True, "verdict": "right"}
    assert [t.reward for t in (first, hinted, told, second)] == [0.0, None, 1.0, 0.0]
    assert found.answer == WRONG, "the game answers without a hint"


def test_a_hint_that_leads_nowhere_teaches_nothing() -> None:
    for said in (WRONG, cut(RIGHT), "?"):
        found = starred({"solution": WRONG, "hint": said}, votes=1)
        assert [t.role for t in found.turns] == ["solution", "hint"]
        assert [t.reward for t in found.turns] == [0.0, None]
    unhinted = starred({"solution": WRONG, "hint": RIGHT}, votes=1, hints=False)
    assert [t.role for t in unhinted.turns] == ["solution"]


def test_where_the_verifier_broke_down_star_neither_pays_nor_hints() -> None:
    task = replace(pick.task, verify=lambda *_: "failed")
    found = starred({"solution": WRONG, "hint": RIGHT}, task, votes=2)
    assert [(t.role, t.reward) for t in found.turns] == [("solution", None)] * 2


def talk(name: str, answer: str | None, *tokens: int) -> Episode:
    """A talk about one question whose turns have so many tokens."""
    turns = [turn(f"{name}/{place}", tokens=count) for place, count in enumerate(tokens)]
    return Episode(name, Q, turns, answer)


def test_optima_learns_the_shortest_right_talk() -> None:
    talks = [talk("a", RIGHT, 30, 10), talk("b", WRONG, 5), talk("c", RIGHT, 15, 5)]
    optima.settle(talks, pick.task)
    rewards = [[t.reward for t in episode.turns] for episode in talks]
    assert rewards == [[None, None], [None], [0.75, 0.75]], "1 - .5 * 20 / 40"
    optima.settle(talks, pick.task, length=0.0)
    assert talks[0].turns[0].reward == 1.0, "the first of equals"


def test_optima_learns_nothing_where_no_talk_is_worth_it() -> None:
    wrong = [talk("a", WRONG, 30), talk("b", None, 5)]
    optima.settle(wrong, pick.task)
    alone = [talk("a", RIGHT, 30)]
    optima.settle(alone, pick.task, least=0.6)
    assert {t.reward for episode in [*wrong, *alone] for t in episode.turns} == {None}
    optima.settle(alone, pick.task, least=0.5)
    assert alone[0].turns[0].reward == 0.5
    broken = replace(pick.task, verify=lambda *_: "failed")
    kept = [talk("a", RIGHT, 30)]
    optima.settle(kept, broken)
    assert kept[0].turns[0].reward is None


def answered(kind: str, *rewards: float | None) -> Episode:
    turns = [turn(f"{kind}{place}", reward=reward) for place, reward in enumerate(rewards)]
    return Episode("e", replace(Q, kind=kind), turns)


@pytest.mark.parametrize("right", range(9))
def test_what_sec_gains_is_the_spread_of_a_coin(right: int) -> None:
    rewards = [1.0] * right + [0.0] * (8 - right)
    p = right / 8
    # of rewards 0 and 1 the mean absolute standardised one is 2 sqrt(p (1 - p))
    assert sec.gained(answered("x", *rewards)) == pytest.approx(2 * (p * (1 - p)) ** 0.5)


def test_values_of_sec_move_towards_what_was_gained() -> None:
    questions = [replace(Q, kind=kind) for kind in ("x", "y", "x")]
    state = sec.start(questions, pick.task)
    assert state == {"values": {"x": 0.0, "y": 0.0}}
    episodes = [answered("x", 1.0, 0.0), answered("x", 1.0, 1.0), answered("z", None)]
    assert sec.update(state, episodes, pick.task, rate=0.5) == {"values": {"x": 0.25, "y": 0.0}}
    assert state == {"values": {"x": 0.0, "y": 0.0}}


@pytest.mark.parametrize(
    ("method", "task", "agents"),
    [("sec", "pick_levels", 4), ("star", "pick", 1), ("optima", "pick", 2)],
)
def test_each_runs_by_its_name_alone(method: str, task: str, agents: int) -> None:
    found = runs.planned([f"method={method}"])
    assert found.config.task == task
    assert len(found.config.agents) == agents
    elsewhere = runs.planned([f"method={method}", "task=sums"])
    assert elsewhere.config.task == "sums", "a task that is named stays"


def test_questions_of_a_method_with_a_task_of_its_own_are_of_that_task() -> None:
    found = runs.planned(["method=sec"])
    kinds = {question.kind for question in found.task.load("train", limit=60)}
    assert kinds == {"three of 4", "three of 5", "three of 6"}


def test_sec_draws_more_of_what_teaches_more() -> None:
    import random

    questions = [
        Question(id=f"{kind}{i}", prompt="p", kind=kind) for kind in "xy" for i in range(200)
    ]
    state = {"values": {"x": 0.5, "y": 0.0}}
    rng = random.Random(0)
    drawn = sec.draw(state, questions, 100, rng, pick.task, temperature=0.25)
    share = sum(question.kind == "x" for question in drawn) / 100
    assert 0.8 < share < 0.95, "1 / (1 + e^-2) is .88"
