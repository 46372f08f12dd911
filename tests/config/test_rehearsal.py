"""Games that end early where work is wrong or nothing is posed are rehearsed at their longest."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from comas.config.policies import Resolved
from comas.config.rehearsal import (
    _plays_of,
    check_playable,
    rehearse,
    roles_asked,
)
from comas.config.resolve import resolve
from comas.config.schema import read
from comas.game.agent import Agent, choose
from comas.types import Question, Task, UserMistake


def config_of(name: str, *keys: str) -> Resolved:
    return resolve(read(None, [f"method={name}", *keys]))


@pytest.mark.parametrize(
    ("name", "replies"),
    [
        ("spell", 1 + 1 + 8 * (1 + 3)),  # with three judges of each of eight answers
        ("spc", 1 + 2 * (1 + 1) + 1),  # spoilt work, and a critic of all
        ("ssp", 1 + 1 + 5),  # a reader between the proposer and five solvers
        ("ssr", 1 + 4),
        ("dr_zero", 1 + 5),
        ("self_redteam", 1 + 1),  # by chance, half of the requests are rewritten first
    ],
)
def test_a_game_that_may_end_early_is_rehearsed_to_its_end(name: str, replies: int) -> None:
    resolved = config_of(name, "questions=2", "test_questions=0", "eval_every=0")
    rehearsal = rehearse(resolved)
    assert rehearsal is not None
    assert (rehearsal.replies, rehearsal.exactly) == (replies, False)


@pytest.mark.parametrize("name", ["ttrl", "mae", "eva", "r_zero"])
def test_a_game_that_always_asks_as_many_is_rehearsed_exactly(name: str) -> None:
    rehearsal = rehearse(config_of(name))
    assert rehearsal is not None
    assert rehearsal.exactly


async def repaired(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Wrong work is repaired by one, right work criticised and assessed by two."""
    work = await choose(agents, rng, "solution").ask("solution", question.prompt)
    if task.verify(question, work.text) == "wrong":
        await choose(agents, rng, "revision").ask("revision", work.text)
    else:
        await choose(agents, rng, "evaluation").ask("evaluation", work.text)
        await choose(agents, rng, "assess").ask("assess", work.text)
    return work.text


def repairing(*roles: str) -> Resolved:
    """A team that takes these roles and plays that game."""
    resolved = resolve(
        read(None, {"method": "rlvr", "agents": {"a": {"roles": roles}}, "room.revision": 77})
    )
    return replace(resolved, method=replace(resolved.method, play=repaired))


def test_roles_of_a_shorter_play_count_as_asked() -> None:
    resolved = repairing("solution", "revision", "evaluation", "assess")
    rehearsal = rehearse(resolved)
    assert rehearsal is not None
    assert rehearsal.replies == 3
    assert set(rehearsal.asked) == {"solution", "evaluation", "assess", "revision"}
    assert roles_asked(resolved.method, resolved.task, 1, {}) == set(rehearsal.asked)


@pytest.mark.parametrize("missing", ["revision", "assess"])
def test_a_role_that_is_asked_only_then_has_to_be_taken(missing: str) -> None:
    roles = ("solution", "revision", "evaluation", "assess")
    check_playable(repairing(*roles))
    with pytest.raises(UserMistake, match=f"no agent takes role '{missing}', which the game asks"):
        check_playable(repairing(*(role for role in roles if role != missing)))


async def until_others(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Asks until an answer is not the first one again."""
    first = await agents[0].ask("solution", question.prompt)
    work = await agents[0].ask("solution", question.prompt)
    while task.same(first.text, work.text):
        work = await agents[0].ask("solution", question.prompt)
    return work.text


def test_a_game_without_end_for_some_stand_ins_is_soon_given_up_there() -> None:
    resolved = repairing("solution")
    resolved = replace(resolved, method=replace(resolved.method, play=until_others))
    rehearsal = rehearse(resolved)
    assert rehearsal is not None
    assert (rehearsal.replies, rehearsal.exactly) == (2, False)
    plays = _plays_of(resolved)
    assert [play.turns is None for play in plays] == [False, False, True, False]


def test_options_that_do_not_go_together_are_told_before_a_model_is_loaded() -> None:
    resolved = resolve(read(None, ["options.blind=true", "options.evaluate=false"]))
    with pytest.raises(UserMistake, match=r"options\.blind has critics answer first"):
        check_playable(resolved)
