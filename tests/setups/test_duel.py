"""The setup `duel`: who sits where, and what is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from comas.evaluation.accuracy import answer_all
from comas.evaluation.setups import Asking, ChosenSetup, by_themselves, check_playable
from comas.game.play import GameContext, first, play_all
from comas.setups import duel
from comas.tasks import kuhn, pick, tictactoe
from comas.testing import scripted_team
from comas.types import Episode, Task, UserMistake
from tests.support.games import game


def duels(
    task: Task, script: Any, count: int = 60, agents: int = 1, **options: Any
) -> list[Episode]:
    members, _ = scripted_team(script, agents)
    context = GameContext(game(duel.play), task, members, 0, options)
    try:
        return asyncio.run(play_all(context, task.load("test", limit=count), "duel"))
    except BaseExceptionGroup as errors:
        raise first(errors) from None


def always(move: str) -> Any:
    return lambda *_: move


def test_both_seats_are_played_unless_one_is_named() -> None:
    seats = Counter(e.turns[0].info["seat"] for e in duels(kuhn.task, always("bet")))
    assert min(seats[0], seats[1]) > 15
    for seat, place in (("first", 0), ("second", 1)):
        games = duels(kuhn.task, always("bet"), seat=seat)
        assert {turn.info["seat"] for e in games for turn in e.turns} == {place}


def test_the_answer_is_the_agents_outcome() -> None:
    for episode in duels(kuhn.task, always("bet"), against="best"):
        payoff = episode.turns[-1].info["payoff"]
        assert episode.answer == f"{'won' if payoff > 0 else 'lost'} {payoff:g}"
        verdict = "right" if payoff > 0 else "wrong"
        assert kuhn.task.verify(episode.question, episode.answer) == verdict


def test_a_draw_is_not_right() -> None:
    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        view = prompt.split("number:\n\n")[1].split("\n\nYour move")[0]
        legal = [cell for cell in view.split() if cell in tictactoe.CELLS]
        return tictactoe.perfect(view, legal, random_of(seed))

    games = duels(tictactoe.task, script, 6, against="best")
    assert {e.answer for e in games} == {"drawn 0"}
    assert {tictactoe.task.verify(e.question, e.answer or "") for e in games} == {"wrong"}


def random_of(seed: int) -> Any:
    import random

    return random.Random(seed)


def test_agents_play_each_other() -> None:
    games = duels(kuhn.task, always("bet"), agents=3, against="team")
    for episode in games:
        assert len({turn.agent for turn in episode.turns}) == 2
    named = duels(kuhn.task, always("bet"), agents=3, agent="a1", against="a2", seat="second")
    for episode in named:
        assert [turn.agent for turn in episode.turns] == ["a2", "a1"]
    drawn = duels(kuhn.task, always("bet"), agents=3)
    assert {turn.agent for e in drawn for turn in e.turns} == {"a0", "a1", "a2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": "anna"}, "nobody is called against='anna': random, best, team, or an agent"),
        ({"agent": "a7"}, "no agent 'a7' to play against random: a0"),
        ({"against": "team"}, "nobody is called against='team'"),
    ],
)
def test_who_is_not_there(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        duels(kuhn.task, always("bet"), **options)


def test_games_are_measured_by_duels() -> None:
    members, _ = scripted_team(always("bet"), 1)
    context = Asking().context(kuhn.task, by_themselves(kuhn.task), members, 0)
    answers = asyncio.run(answer_all(context, kuhn.load("test", limit=12), "before"))
    assert {answer["verdict"] for answer in answers} == {"right", "wrong"}
    assert all((answer["text"] or "").split()[0] in ("won", "lost") for answer in answers)


def test_evaluations_tell_games_from_questions() -> None:
    from comas.config.plugins import load_plugin

    def setup_of(name: str) -> ChosenSetup:
        setup = load_plugin("setup", name)
        return ChosenSetup(name, game(setup.play, needs=setup.needs), setup.alone, {})

    check_playable(setup_of("duel"), kuhn.task)
    check_playable(setup_of("single"), pick.task)
    with pytest.raises(UserMistake, match=r"setup duel .*`rules`, .*task pick"):
        check_playable(setup_of("duel"), pick.task)
    with pytest.raises(UserMistake, match=r"task kuhn .*setup single"):
        check_playable(setup_of("single"), replace(kuhn.task))
