"""What one discussion asks for, counted by playing it: roles, turns, replies side by side.

Hosts repeat a word and every text can be read, so that nothing is left out. Leaves out: how long
real replies are (`forecast.hours`).
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comas.config.options import split_options
from comas.config.policies import Resolved
from comas.config.schema import Config
from comas.game.agent import Member, NobodyTakes
from comas.game.memory import at_start
from comas.game.play import Scene, first, play_all
from comas.sync import run_sync
from comas.types import Episode, Fit, Method, Question, Reply, Sampling, Task, Turn

WORD = "rehearsed"
"""In every reply, so that those that a prompt shows can be counted."""
MOST = 10_000
"""Replies after which a game is taken to go on for as long as its agents disagree."""
SECONDS = 20.0
"""After which a rehearsal is given up: the game does something else than to ask."""


@dataclass(frozen=True)
class Rehearsal:
    """One discussion of one question."""

    roles: tuple[str, ...]
    """Of its turns, one for each."""
    shown: int
    """Replies in the prompt that has most of them."""
    at_once: Mapping[str, int]
    """Host -> replies that it is asked for side by side, at most."""
    exactly: bool
    """Whether it asks as many where nothing that is said can be read; otherwise at most."""

    @property
    def replies(self) -> int:
        """How many are asked for."""
        return len(self.roles)


@dataclass
class _Host:
    """Says a word, and counts who waits for it."""

    name: str
    open: int = 0
    most: int = 0
    said: int = field(default=0)

    async def fits(self, *_: Any) -> Fit:
        return Fit(True)

    async def ask(self, *_: Any) -> Reply:
        self.open += 1
        self.most = max(self.most, self.open)
        self.said += 1
        if self.said > MOST:
            raise OverflowError(f"more than {MOST} replies to one question")
        text = f"{WORD} {self.said}"
        await asyncio.sleep(0)
        self.open -= 1
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)

    async def tell(self, turn: str, policy: str, messages: Any, text: str, *_: Any) -> Reply:
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)


_played_already: list[tuple[Resolved, Rehearsal | None]] = []
"""The last few rehearsals: each of their readers asks anew, and an own game may take its time."""
REMEMBERED = 8


def rehearse(resolved: Resolved) -> Rehearsal | None:
    """Play one discussion of a resolved config, once however often it is asked for; None where its
    game cannot be played so, such as one that needs more of a question than its text.
    """
    for earlier, rehearsal in _played_already:
        if _same_game(earlier, resolved):
            return rehearsal
    rehearsal = _rehearse(resolved)
    _played_already.append((resolved, rehearsal))
    del _played_already[:-REMEMBERED]
    return rehearsal


def _same_game(one: Resolved, other: Resolved) -> bool:
    """Whether the same agents play the same game, whatever the other settings."""
    return (
        one.method.play is other.method.play
        and one.task is other.task
        and one.config.options == other.config.options
        and one.config.agents == other.config.agents
        and one.config.hosts.keys() == other.config.hosts.keys()
    )


def check_taken(resolved: Resolved) -> None:
    """An error where the game asks for a role that no agent takes: before a model is loaded."""
    members = _members(resolved.config, {name: _Host(name) for name in resolved.config.hosts})
    options = split_options(resolved.config.options, resolved.method.play)
    _, error = _episode(resolved.method, readable(resolved.task), members, options)
    cause = first(error) if error is not None else None
    if isinstance(cause, NobodyTakes):
        raise cause


def _rehearse(resolved: Resolved) -> Rehearsal | None:
    config = resolved.config
    method = resolved.method
    options = split_options(config.options, method.play)
    hosts = {name: _Host(name) for name in config.hosts}
    members = _members(config, hosts)
    turns = _played(method, readable(resolved.task), members, options)
    if turns is None:
        return None
    at_once = {name: host.most for name, host in hosts.items()}
    unreadable = _standing_in(resolved.task, None)
    unread = _played(method, unreadable, members, options)
    return Rehearsal(
        roles=tuple(turn.role for turn in turns),
        shown=max((turn.prompt.count(WORD) for turn in turns), default=0),
        at_once=at_once,
        exactly=unread is not None and len(unread) == len(turns),
    )


def _members(config: Config, hosts: Mapping[str, _Host]) -> list[Member]:
    """The agents of a config, each with the roles that it takes."""
    members: list[Member] = []
    for name, agent in config.agents.items():
        roles = tuple(agent.roles) if agent.roles is not None else None
        member = _member(name, hosts[agent.host])
        members.append(replace(member, policy=agent.policy_name(name), roles=roles))
    return members


def roles_asked(method: Method, task: Task, agents: int, options: Mapping[str, Any]) -> set[str]:
    """The roles in which a team of so many agents, who take any, is asked; empty where the game
    cannot be played so.
    """
    return {turn.role for turn in _turns(method, task, agents, options)}


def turns_asked(method: Method, task: Task, agents: int, options: Mapping[str, Any]) -> int:
    """How many replies such a game asks for; at least one."""
    return max(1, len(_turns(method, task, agents, options)))


def _turns(method: Method, task: Task, agents: int, options: Mapping[str, Any]) -> list[Turn]:
    members = [_member(f"a{i}", _Host("home")) for i in range(agents)]
    known = split_options(options, method.play)
    return _played(method, readable(task), members, known) or []


def readable(task: Task) -> Task:
    """The same task, in which every text can be read, and no two answers are the same."""
    return _standing_in(task, str)


def _standing_in(task: Task, read: Any) -> Task:
    def extract(question: Question, text: str) -> str | None:
        return read and read(text)

    # the task's own `same` may read its answers as numbers
    same = operator.eq
    return replace(task, extract=extract, same=same, ballot=None, verify=lambda *_: "wrong")


def _member(name: str, host: _Host) -> Member:
    speaker: Any = host
    return Member(name, speaker, name, None, Sampling())


def _question(task: Task) -> Question:
    """A question of no task; of a game its first start, since rules can read no other."""
    if task.rules is not None:
        return task.load("train", limit=1)[0]
    return Question(id="rehearsal", prompt="?", answer="?")


def _played(
    method: Method, task: Task, members: Sequence[Member], options: Mapping[str, Any]
) -> list[Turn] | None:
    episode, error = _episode(method, task, members, options)
    return None if episode is None or error is not None or episode.error else episode.turns


def _episode(
    method: Method, task: Task, members: Sequence[Member], options: Mapping[str, Any]
) -> tuple[Episode | None, Exception | None]:
    """A discussion by these agents, or why it cannot be played."""
    task = replace(task, shown=lambda _, text: text)
    try:
        question = _question(task)
        scene = at_start(Scene(method, task, members, 0, options))
        played = asyncio.wait_for(play_all(scene, [question], "rehearsal"), SECONDS)
        (episode,) = run_sync(played)
    except Exception as error:  # noqa: BLE001 - whatever somebody's game does with a question of no task
        return None, error
    return episode, None
