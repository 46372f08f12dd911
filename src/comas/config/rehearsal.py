"""What one discussion asks for, counted by playing it with hosts that say a word and a number: whom
it asks in which role, and how many replies at most.

A game may end early where work is wrong, nothing is posed or nothing can be read, so that it is
played with a few stand-ins for its task. Leaves out: what tools are called for.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from comas.config.options import split_options
from comas.config.policies import Resolved
from comas.config.schema import Config
from comas.game.agent import CannotBePlayed, Member
from comas.game.memory import at_start, next_state
from comas.game.play import Scene, first, play_all
from comas.sync import run_sync
from comas.types import (
    Fit,
    Method,
    Question,
    Reply,
    Sampling,
    Task,
    Turn,
    UserMistake,
    Verdict,
    whole,
)

MOST = 10_000
"""Replies after which a game is taken to go on for as long as its agents disagree."""
FEWEST = 200
FACTOR = 40
"""With later stand-ins at most so many replies, or so many times those with the first one, where
that is more: a game may go on for as long as its agents agree.
"""
SECONDS = 20.0
"""After which a play is given up: the game does something else than to ask."""
NEVER_GIVEN = "an answer that nobody gives"
"""Of questions that agents pose in a rehearsal."""


class Rehearsal(NamedTuple):
    """One discussion of one question."""

    asked: tuple[str, ...]
    """Roles in which anybody is asked, once each."""
    replies: int
    """At its longest."""
    exactly: bool
    """Whether it asks as many whatever is said: also where nothing can be read, and whether or not
    texts pose questions, are right, or agree. Otherwise at most.
    """


@dataclass
class _Host:
    """Says a word and a number."""

    name: str
    limit: int = MOST
    """Replies after which a game is given up."""
    said: int = 0

    async def fits(self, *_: Any) -> Fit:
        return Fit(True)

    async def ask(self, *_: Any) -> Reply:
        self.said += 1
        if self.said > self.limit:
            raise OverflowError(f"more than {self.limit} replies to one question")
        text = f"rehearsed {self.said}"
        await asyncio.sleep(0)
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)

    async def tell(self, ask: Any, text: str) -> Reply:
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)

    async def weigh(self, ask: Any, choices: Sequence[str]) -> Reply:
        await self.ask(ask)
        weights = (0.0,) * len(choices)
        return Reply(choices[0], True, 0, 0, 1, 0.0, 0.0, weights=weights)


@dataclass(frozen=True)
class _Play:
    """A discussion with one stand-in for the task."""

    turns: Sequence[Turn] | None
    """None where it could not be played."""
    refused: str
    """Why, where a role is asked that no agent takes."""


def rehearse(resolved: Resolved) -> Rehearsal | None:
    """Play one discussion of a resolved config; None where its game cannot be played so, such as
    one that needs more of a question than its text.
    """
    plays = _plays_of(resolved)
    if plays[0].turns is None:
        return None
    turns = [play.turns for play in plays if play.turns is not None]
    return Rehearsal(
        asked=tuple(dict.fromkeys(turn.role for own in turns for turn in own)),
        replies=max(map(len, turns)),
        exactly=len(turns) == len(plays) and len(set(map(len, turns))) == 1,
    )


@lru_cache(maxsize=4)
def _plays_of(resolved: Resolved) -> list[_Play]:
    """Play it once for all who ask."""
    config = resolved.config
    return _plays(resolved.method, resolved.task, config.options, partial(_members, config))


def check_playable(resolved: Resolved) -> None:
    """An error where the game refuses its team or its options, or its memory does after a step
    without discussions: before a model is loaded.
    """
    for play in _plays_of(resolved):
        if play.refused:
            raise CannotBePlayed(play.refused)
    method = resolved.method
    if method.update is None:
        return
    options = split_options(resolved.config.options, method.update)
    try:
        next_state(at_start(Scene(method, resolved.task, [], 0)), [], options)
    except CannotBePlayed:
        raise
    except Exception:  # noqa: BLE001 - somebody's memory may need discussions
        pass


def check_asked(resolved: Resolved, question: Question) -> None:
    """An error where a shipped method refuses this question, or how its task reads answers: before
    a model is loaded.
    """
    method = resolved.method
    if not method.play.__module__.startswith("comas.methods."):
        return
    task = replace(readable(resolved.task), extract=resolved.task.extract)
    members = _members(resolved.config, MOST)
    mistake = mistake_in(method, task, members, question, resolved.config.options)
    if mistake is not None:
        raise mistake


def _members(config: Config, limit: int) -> list[Member]:
    """The agents of a config, each with the roles that it takes."""
    hosts = {name: _Host(name, limit) for name in config.hosts}
    members: list[Member] = []
    for name, agent in config.agents.items():
        roles = tuple(agent.roles) if agent.roles is not None else None
        member = _member(name, hosts[agent.host])
        members.append(replace(member, policy=agent.policy_name(name), roles=roles))
    return members


def mistake_in(
    method: Method,
    task: Task,
    members: Sequence[Member],
    question: Question,
    options: Mapping[str, Any],
) -> UserMistake | None:
    """What a game refuses of its options, its team or a task, such as the `readable` one; None
    where it can be played, or nobody knows before it is.
    """
    speaking = [replace(member, host=_Host(member.host.name)) for member in members]
    played = replace(task, shown=whole)
    scene = Scene(method, played, speaking, 0, split_options(options, method.play))
    try:
        playing = play_all(at_start(scene), [question], "rehearsal")
        run_sync(asyncio.wait_for(playing, SECONDS))
    except Exception as error:  # noqa: BLE001 - it is told when it is played in earnest
        cause = first(error)
        return cause if isinstance(cause, UserMistake) else None
    return None


def roles_asked(method: Method, task: Task, agents: int, options: Mapping[str, Any]) -> set[str]:
    """The roles in which a team of so many agents, who take any, is asked; empty where the game
    cannot be played so.
    """

    def members(limit: int) -> list[Member]:
        return [_member(f"a{i}", _Host("home", limit)) for i in range(agents)]

    plays = _plays(method, task, options, members)
    if plays[0].turns is None:
        return set()
    return {turn.role for play in plays for turn in play.turns or ()}


def readable(task: Task) -> Task:
    """The same task, in which every text can be read, and no two answers are the same."""
    return _standing_in(task, str)


def stand_ins(task: Task) -> list[Task]:
    """What a game is rehearsed with, for one discussion each: the readable task, first; two in
    which every text poses a question and only the first work is right, no answers the same or all;
    and one in which nothing can be read.
    """
    taking = [_taking(task, same) for same in (operator.eq, _always)]
    return [readable(task), *taking, _standing_in(task, None)]


def _standing_in(task: Task, read: Any) -> Task:
    def extract(question: Question, text: str) -> str | None:
        return read and read(text)

    # the task's own `same` may read its answers as numbers
    same = operator.eq
    return replace(task, extract=extract, same=same, ballot=None, verify=lambda *_: "wrong")


def _taking(task: Task, same: Callable[[str, str], bool]) -> Task:
    """Every text poses a question, and work is right at first, then wrong."""
    at_first: list[Verdict] = ["right"]

    def rule(question: Question, text: str) -> Verdict:
        return at_first.pop() if at_first else "wrong"

    return replace(
        readable(task),
        same=same,
        verify=rule,
        check=rule if task.check is not None else None,
        pose=_posed if task.pose is not None else None,
        # its own may need what a posed question has not
        shown=whole,
    )


def _always(one: str, other: str) -> bool:
    return True


def _posed(text: str) -> Question:
    return Question(id=f"posed: {text}", prompt=text, answer=NEVER_GIVEN)


def _member(name: str, host: _Host) -> Member:
    speaker: Any = host
    return Member(name, speaker, name, None, Sampling())


def _question(task: Task) -> Question:
    """A question of no task; of a game its first start, since rules can read no other."""
    if task.rules is not None:
        return task.load("train", limit=1)[0]
    return Question(id="rehearsal", prompt="?", answer="?")


def _plays(
    method: Method, task: Task, options: Mapping[str, Any], gather: Callable[[int], list[Member]]
) -> list[_Play]:
    """A discussion with each of the stand-ins, or with the first alone where that cannot be played,
    each with agents that nobody has asked yet, and other chance.
    """
    known = split_options(options, method.play)
    plays: list[_Play] = []
    limit = MOST
    # from 2 on: with these seeds both halves of what `self_redteam` leaves to chance are played
    for seed, stand_in in enumerate(stand_ins(task), 2):
        played = replace(stand_in, shown=whole)
        plays.append(_play(Scene(method, played, gather(limit), seed, known)))
        first_turns = plays[0].turns
        if first_turns is None:
            break
        limit = max(FEWEST, FACTOR * len(first_turns))
    return plays


def _play(scene: Scene) -> _Play:
    """A discussion, or why it cannot be played."""
    turns: Sequence[Turn] | None = None
    refused = ""
    try:
        question = _question(scene.task)
        playing = play_all(at_start(scene), [question], "rehearsal")
        (episode,) = run_sync(asyncio.wait_for(playing, SECONDS))
        turns = None if episode.error else episode.turns
    except Exception as error:  # noqa: BLE001 - whatever somebody's game does with a question of no task
        cause = first(error)
        if isinstance(cause, CannotBePlayed):
            refused = str(cause)
    return _Play(turns, refused)
