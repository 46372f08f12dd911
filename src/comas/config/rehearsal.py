"""One discussion before a model is loaded: a question is played with hosts that say a word and a
number, so that a game which refuses its team, its options or its task says so at once; so does
what it remembers of a step without discussions.

All work counts as wrong there, and every text can be read. Leaves out: roles that are asked only
sometimes, which a method declares (`Method.roles`), and calls of tools.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comas.game.agent import TeamMember
from comas.game.memory import at_start, next_state
from comas.game.play import GameContext, first, play_all
from comas.sync import run_sync
from comas.types import CannotBePlayed, Fit, Method, Question, Reply, Task, Turn, UserMistake, whole

SAID = "rehearsed"
"""The word of every reply."""
MOST = 10_000
"""Replies after which a game is given up: it goes on for as long as its agents disagree."""
SECONDS = 20.0
"""After which it is given up as well: it does something else than to ask."""


class _Host:
    """Says a word and a number."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replies = 0

    async def fits(self, *_: Any) -> Fit:
        return Fit(True)

    async def ask(self, *_: Any) -> Reply:
        self.replies += 1
        if self.replies > MOST:
            raise OverflowError(f"more than {MOST} replies to one question")
        await asyncio.sleep(0)
        return Reply(f"{SAID} {self.replies}", True, 0, 0, 1, 0.0, 0.0)

    async def tell(self, ask: Any, text: str) -> Reply:
        return Reply(text, True, 0, 0, 1, 0.0, 0.0)

    async def weigh(self, ask: Any, choices: Sequence[str]) -> Reply:
        reply = await self.ask(ask)
        return replace(reply, text=choices[0], weights=(0.0,) * len(choices))


def rehearse(
    method: Method,
    task: Task,
    members: Sequence[TeamMember],
    question: Question,
    options: Mapping[str, Any],
) -> Sequence[Turn]:
    """Play a question with these agents at a host of no model; the turns, none where the game
    cannot be played so.

    Raises the UserMistake of a shipped game, and of one of the user's own CannotBePlayed.
    """
    readable = replace(
        task,
        # whatever is said can be read; how the task reads answers stays what it is
        extract=lambda question, text: text if SAID in text else task.extract(question, text),
        same=operator.eq,  # the task's own may read its answers as numbers
        ballot=None,
        verify=lambda *_: "wrong",
        shown=whole,
    )
    hosts: dict[str, Any] = {m.host.name: _Host(m.host.name) for m in members}
    seated = [replace(member, host=hosts[member.host.name]) for member in members]
    context = GameContext(method, readable, seated, 0, options)
    try:
        context = at_start(context)
        playing = play_all(context, [question], "rehearsal")
        (episode,) = run_sync(asyncio.wait_for(playing, SECONDS))
        if method.memory.update is not None:
            next_state(context, [])
    except Exception as error:  # noqa: BLE001 - whatever somebody's game does with what nobody would say
        cause = first(error)
        shipped = method.play.__module__.startswith("comas.")
        if isinstance(cause, UserMistake if shipped else CannotBePlayed):
            raise cause from None
        return []
    return [] if episode.error else episode.turns
