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
from functools import lru_cache
from typing import Any, NamedTuple

from comas.config.options import split_options
from comas.config.policies import Resolved
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


class _Play(NamedTuple):
    """A discussion with one stand-in for the task."""

    turns: Sequence[Turn] | None
    """None where it could not be played."""
    mistake: UserMistake | None = None
    """Raised by the game."""


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
        await asyncio.sleep(0)
        return Reply(f"rehearsed {self.said}", True, 0, 0, 1, 0.0, 0.0)

    async def tell(self, ask: Any, text: str) -> Reply:
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)

    async def weigh(self, ask: Any, choices: Sequence[str]) -> Reply:
        reply = await self.ask(ask)
        return replace(reply, text=choices[0], weights=(0.0,) * len(choices))


def _member(name: str, host: str) -> Member:
    """An agent that takes any role."""
    speaker: Any = _Host(host)
    return Member(name, speaker, name, None, Sampling())


def _members(resolved: Resolved) -> list[Member]:
    """The agents of a config, each with the roles that it takes."""
    members: list[Member] = []
    for name, agent in resolved.config.agents.items():
        roles = tuple(agent.roles) if agent.roles is not None else None
        member = _member(name, agent.host)
        members.append(replace(member, policy=agent.policy_name(name), roles=roles))
    return members


# --- what is asked of a game


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


def roles_asked(method: Method, task: Task, agents: int, options: Mapping[str, Any]) -> set[str]:
    """The roles in which a team of so many agents, who take any, is asked; empty where the game
    cannot be played so.
    """
    plays = _plays(method, task, options, [_member(f"a{i}", "home") for i in range(agents)])
    if plays[0].turns is None:
        return set()
    return {turn.role for play in plays for turn in play.turns or ()}


def check_playable(resolved: Resolved) -> None:
    """Raise CannotBePlayed where the game refuses its team or options, or its memory does after a
    step without discussions; no model is loaded.
    """
    for play in _plays_of(resolved):
        if isinstance(play.mistake, CannotBePlayed):  # anew: that one is kept in the cache
            raise CannotBePlayed(str(play.mistake))
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
    """Raise UserMistake where a shipped method refuses this question, or how its task reads
    answers; no model is loaded.
    """
    method = resolved.method
    if not method.play.__module__.startswith("comas.methods."):
        return
    task = replace(readable(resolved.task), extract=resolved.task.extract)
    mistake = mistake_in(method, task, _members(resolved), question, resolved.config.options)
    if mistake is not None:
        raise mistake


def mistake_in(
    method: Method,
    task: Task,
    members: Sequence[Member],
    question: Question,
    options: Mapping[str, Any],
) -> UserMistake | None:
    """Play a question and return the UserMistake that the game raises about its options, team or
    task; None where it can be played, or fails otherwise.
    """
    known = split_options(options, method.play)
    return _play(Scene(method, task, _rehearsing(members, MOST), 0, known), question).mistake


# --- the discussions


@lru_cache(maxsize=4)
def _plays_of(resolved: Resolved) -> list[_Play]:
    """Play it once for all who ask."""
    return _plays(resolved.method, resolved.task, resolved.config.options, _members(resolved))


def _plays(
    method: Method, task: Task, options: Mapping[str, Any], members: Sequence[Member]
) -> list[_Play]:
    """A discussion with each of the stand-ins, or with the first alone where that cannot be played,
    each with agents that nobody has asked yet, and other chance.
    """
    known = split_options(options, method.play)
    plays: list[_Play] = []
    limit = MOST
    # from 2 on: with these seeds both halves of what `self_redteam` leaves to chance are played
    for seed, stand_in in enumerate(stand_ins(task), 2):
        plays.append(_play(Scene(method, stand_in, _rehearsing(members, limit), seed, known)))
        first_turns = plays[0].turns
        if first_turns is None:
            break
        limit = max(FEWEST, FACTOR * len(first_turns))
    return plays


def _rehearsing(members: Sequence[Member], limit: int) -> list[Member]:
    """Seat agents at fresh rehearsal hosts of the same names."""
    hosts: dict[str, Any] = {m.host.name: _Host(m.host.name, limit) for m in members}
    return [replace(member, host=hosts[member.host.name]) for member in members]


def _play(scene: Scene, question: Question | None = None) -> _Play:
    """A discussion, or why it cannot be played: of `question`, or of one of no task; of a game its
    first start, since rules can read no other.
    """
    try:
        if question is None and scene.task.rules is not None:
            question = scene.task.load("train", limit=1)[0]
        question = question or Question(id="rehearsal", prompt="?", answer="?")
        playing = play_all(at_start(scene), [question], "rehearsal")
        (episode,) = run_sync(asyncio.wait_for(playing, SECONDS))
    except Exception as error:  # noqa: BLE001 - whatever somebody's game does with a question of no task
        cause = first(error)
        if not isinstance(cause, UserMistake):
            return _Play(None)
        # tracebacks would keep the whole play in the cache
        cause.__cause__ = cause.__context__ = None
        return _Play(None, cause.with_traceback(None))
    return _Play(None if episode.error else episode.turns)


# --- stand-ins for a task


def readable(task: Task) -> Task:
    """Make every text of a task readable, no two answers the same, and all work wrong."""
    return replace(
        task,
        extract=lambda _, text: text,
        # the task's own may read its answers as numbers
        same=operator.eq,
        ballot=None,
        verify=lambda *_: "wrong",
        # its own may need what a posed question has not
        shown=whole,
    )


def stand_ins(task: Task) -> list[Task]:
    """What a game is rehearsed with, for one discussion each: the readable task, first; two in
    which every text poses a question and only the first work is right, no answers the same or all;
    and one in which nothing can be read.
    """
    taking = [_taking(task, operator.eq), _taking(task, lambda *_: True)]
    return [readable(task), *taking, replace(readable(task), extract=lambda *_: None)]


def _taking(task: Task, same: Callable[[str, str], bool]) -> Task:
    """Every text poses a question, and work is right at first, then wrong."""
    at_first: list[Verdict] = ["right"]

    def rule(question: Question, text: str) -> Verdict:
        return at_first.pop() if at_first else "wrong"

    def posed(text: str) -> Question:
        return Question(id=f"posed: {text}", prompt=text, answer=NEVER_GIVEN)

    return replace(
        readable(task),
        same=same,
        verify=rule,
        check=rule if task.check is not None else None,
        pose=posed if task.pose is not None else None,
    )
