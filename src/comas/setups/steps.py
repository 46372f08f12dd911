"""A vote at every step: each answer, each check of it and each new answer is decided by a vote,
before the next step begins.

After MAKER (arXiv 2511.09030), which cuts a task into small steps so that votes keep errors from
adding up. Here the steps are those that any question has: an answer; whether it holds; the answer
that takes its place, up to `rounds` times. At each step agents are asked in turn until one reading
is `ahead` of all others, with at most `votes` replies; cut and unreadable ones have no vote, as
its red flags. The first reply with the reading that won goes on to the next step. Leaves out: steps
of the task's own (moves of a puzzle, lines of a proof), which questions here do not name.
"""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from comas.game import votes as voting
from comas.game.agent import Agent, takers, together
from comas.setups import autogen
from comas.setups.autogen import WORDING as WORDING
from comas.types import Count, Question, Role, Setup, Task, Turn, Whole

Ask = Callable[[Agent], Coroutine[Any, Any, Turn]]
"""Asks an agent for a reply in a step."""
Read = Callable[[Sequence[Turn]], None]
"""Notes on each reply of a step what it votes for, `info["answer"]`; may take seconds."""
Same = Callable[[str, str], bool]
"""Whether two readings are the same."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 6,
    ahead: Count = 2,
    rounds: Whole = 2,
) -> str | None:
    """Answer with what the last vote on an answer chose; None where none can be read."""
    able = takers(agents, "solution")
    checkers = [agent for agent in agents if agent.takes("proxy")] or able

    async def voted(ask: Ask) -> Turn | None:
        """A reply that gives the answer which won; None where none can be read."""
        read = partial(voting.read, question, task=task)
        return await decided(able, ask, read, task.same, votes, ahead)

    def read_checks(turns: Sequence[Turn]) -> None:
        """Note whether each check says that the answer holds."""
        for turn in turns:
            turn.info["answer"] = str(autogen.ends(turn, task)) if turn.finished else None

    answer = await voted(partial(autogen.solve, question=question, task=task))
    for at in range(1, rounds + 1):
        if answer is None:
            return None
        ask = partial(autogen.check, question=question, answer=answer, task=task)
        check = await decided(checkers, ask, read_checks, operator.eq, votes, ahead)
        if check is None or autogen.ends(check, task):
            break
        revise = partial(
            autogen.revise, question=question, answer=answer, reply=check, task=task, at=at
        )
        answer = await voted(revise) or answer
    return answer.text if answer is not None else None


async def decided(
    agents: Sequence[Agent], ask: Ask, read: Read, same: Same, most: int, ahead: int
) -> Turn | None:
    """Ask agents in turn until a reading is `ahead` of all others, or `most` have replied; the
    first reply with the reading that has most votes, None where none can be read.

    Replies that are needed in any case are asked for side by side.
    """
    turns: list[Turn] = []
    best: str | None = None
    missing = ahead
    while missing > 0 and len(turns) < most:
        places = range(len(turns), min(len(turns) + missing, most))
        turns += await together(ask(agents[index % len(agents)]) for index in places)
        await asyncio.to_thread(read, turns)
        best, votes, others = voting.leading([turn.info["answer"] for turn in turns], same)
        missing = ahead - (votes - others)
    if best is None:
        return None
    readable = [turn for turn in turns if turn.info["answer"] is not None]
    return next(turn for turn in readable if same(turn.info["answer"], best))


setup = Setup(play, roles={"solution": Role("answer"), "revision": Role("answer"), "proxy": Role()})
