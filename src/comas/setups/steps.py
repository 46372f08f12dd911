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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from comas.game import votes as voting
from comas.game.agent import Agent, takers, together
from comas.setups import autogen
from comas.setups.autogen import WORDING as WORDING
from comas.types import Count, Question, Setup, Task, Turn, Whole

Ask = Callable[[Agent], Coroutine[Any, Any, Turn]]
"""Asks an agent for a reply in a step."""
Read = Callable[[Sequence[Turn]], None]
"""Notes on each reply of a step what it votes for, `info["answer"]`; may take seconds."""


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
    checkers = takers(agents, "proxy") or able
    vote = Vote(question, task, votes, ahead)
    answer = await vote.on_answers(able, partial(autogen.solve, question=question, task=task))
    for at in range(1, rounds + 1):
        if answer is None:
            return None
        check = await vote.on_checks(
            checkers, partial(autogen.check, question=question, answer=answer, task=task)
        )
        if check is None or autogen.ends(check, task):
            break
        revise = partial(
            autogen.revise, question=question, answer=answer, reply=check, task=task, at=at
        )
        answer = await vote.on_answers(able, revise) or answer
    return answer.text if answer is not None else None


@dataclass(frozen=True)
class Vote:
    """How a step is decided."""

    question: Question
    task: Task
    most: int
    """Replies at most."""
    ahead: int
    """Votes by which a reading has to lead."""

    async def on_answers(self, agents: Sequence[Agent], ask: Ask) -> Turn | None:
        """A reply that gives the answer which won; None where none can be read."""

        def read(turns: Sequence[Turn]) -> None:
            voting.read(self.question, turns, self.task)

        return await self._decide(agents, ask, read)

    async def on_checks(self, agents: Sequence[Agent], ask: Ask) -> Turn | None:
        """A reply that says what most say: that the answer holds, or not."""

        def read(turns: Sequence[Turn]) -> None:
            for turn in turns:
                holds = autogen.ends(turn, self.task)
                turn.info["answer"] = str(holds) if turn.finished else None

        return await self._decide(agents, ask, read, self.task_of_words)

    @property
    def task_of_words(self) -> Task:
        """The task, in which readings are the same that are written alike."""
        return replace(self.task, same=operator.eq)

    async def _decide(
        self, agents: Sequence[Agent], ask: Ask, read: Read, task: Task | None = None
    ) -> Turn | None:
        """Ask agents in turn until a reading leads, or `most` have replied: the first reply with
        the reading that has most votes.

        Replies that are needed in any case are asked for side by side.
        """
        task = task or self.task
        turns: list[Turn] = []
        missing = self.ahead
        while missing > 0 and len(turns) < self.most:
            count = min(missing, self.most - len(turns))
            places = range(len(turns), len(turns) + count)
            turns += await together(ask(agents[place % len(agents)]) for place in places)
            await asyncio.to_thread(read, turns)
            missing = self.ahead - lead(turns, task)
        best = voting.majority([turn.info["answer"] for turn in turns], task)
        if best is None:
            return None
        return next(turn for turn in turns if voting.agrees(turn, best, task))


def lead(turns: Sequence[Turn], task: Task) -> int:
    """By how many votes the first reading is ahead of the second."""
    counts: dict[str, int] = {}
    for turn in turns:
        answer = turn.info["answer"]
        if answer is None:
            continue
        same = next((known for known in counts if task.same(known, answer)), answer)
        counts[same] = counts.get(same, 0) + 1
    first, second = [*sorted(counts.values(), reverse=True), 0, 0][:2]
    return first - second


setup = Setup(play)
