"""One discussion before a model is loaded: what a game refuses is told, what it asks is declared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from comas.config.plan import Plan
from comas.config.plugins import load_plugin, plugin_names
from comas.config.rehearsal import MOST
from comas.game.agent import Agent, choose
from comas.training.start import rehearsed
from comas.types import Question, Task, UserMistake
from tests.support import runs

QUESTION = Question(id="rehearsal", prompt="?", answer="?")


def resolved_of(*keys: str) -> Plan:
    return runs.planned(list(keys))


def question_of(resolved: Plan) -> Question:
    """A question of no task; of a game its first start, since rules can read no other."""
    if resolved.task.rules is None:
        return QUESTION
    return resolved.task.load("train", limit=1)[0]


@pytest.mark.parametrize("name", sorted({*plugin_names("method")} - {"sft"}))
def test_every_method_declares_the_roles_in_which_it_asks(name: str) -> None:
    resolved = resolved_of(f"method={name}")
    turns = rehearsed(resolved, question_of(resolved))
    assert turns or name == "agent0_vl"  # which needs a picture
    declared = {*resolved.method.roles}
    assert {turn.role for turn in turns} <= declared


@pytest.mark.parametrize("name", sorted({*plugin_names("setup")} - {"duel", "tools"}))
def test_every_setup_declares_the_roles_in_which_it_asks(name: str) -> None:
    setup = load_plugin("setup", name)
    resolved = resolved_of("method=ttrl", "agents=2")
    played = replace(resolved, method=replace(resolved.method, play=setup.play))
    played = replace(played, config=resolved.config.model_copy(update={"options": {}}))
    assert {turn.role for turn in rehearsed(played, QUESTION)} <= set(setup.roles)


async def repaired(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Wrong work is repaired."""
    work = await choose(agents, rng, "solution").ask("solution", question.prompt)
    if task.verify(question, work.text) == "wrong":
        await choose(agents, rng, "revision").ask("revision", work.text)
    return work.text


async def until_same(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Asks until an answer is the first one again."""
    first = await agents[0].ask("solution", question.prompt)
    while not task.same((await agents[0].ask("solution", "again")).text, first.text):
        pass
    return first.text


def playing(play: object, *roles: str) -> Plan:
    """A team that takes these roles and plays that game."""
    resolved = runs.planned({"method": "rlvr", "agents": {"a": {"roles": roles}}})
    return replace(resolved, method=replace(resolved.method, play=play))


def test_a_role_that_the_game_asks_has_to_be_taken() -> None:
    turns = rehearsed(playing(repaired, "solution", "revision"), QUESTION)
    assert {turn.role for turn in turns} == {"solution", "revision"}
    with pytest.raises(UserMistake, match="role 'revision'"):
        rehearsed(playing(repaired, "solution"), QUESTION)


def test_a_game_without_end_is_given_up() -> None:
    assert MOST < 1e5
    assert rehearsed(playing(until_same, "solution"), QUESTION) == []


def test_options_that_do_not_go_together_are_told_before_a_model_is_loaded() -> None:
    resolved = resolved_of("method=r_zero", "options.low=0.9", "options.high=0.1")
    with pytest.raises(UserMistake, match="nothing lies between"):
        rehearsed(resolved, QUESTION)
