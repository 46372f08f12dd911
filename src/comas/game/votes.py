"""Independent answers to a question, and the one that most agree on: for votes, and for the methods
that are rewarded by them.

An answer counts as itself, or as the ballot that its task makes of it: of a program, what it does.
Unreadable answers have no vote. Leaves out: weights.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from comas.game.agent import Agent, together
from comas.game.prompts import SOLVING, solving
from comas.types import Question, Task, Turn

Vote = TypeVar("Vote", bound=Hashable)
SIDE_BY_SIDE = 4
"""Ballots that are made at a time: programs wait for each other's time limits."""


async def solved(
    question: Question,
    agents: Iterable[Agent],
    task: Task,
    default: Mapping[str, str] = SOLVING,
) -> list[Turn]:
    """Have each of these agents solve the question, side by side, nobody seeing another's work; one
    that stands there several times does so several times.
    """
    prompt = solving(question, task, default)
    return await together(agent.ask("solution", prompt) for agent in agents)


def in_turn(agents: Sequence[Agent], count: int) -> list[Agent]:
    """So many places, taken by the agents in turn."""
    return [agents[index % len(agents)] for index in range(count)]


def read(question: Question, turns: Sequence[Turn], task: Task) -> None:
    """Note on each turn what it votes for, `info["answer"]`: the canonical answer that it gives, or
    its ballot; None where it is unreadable, unfinished, or a call of a tool that nobody answers.
    """
    answers = [given(question, turn, task) for turn in turns]
    counted: dict[str | None, str | None] = {a: a for a in answers}
    if (ballot := task.ballot) is not None:
        distinct = [a for a in counted if a is not None]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            counted.update(
                zip(distinct, threads.map(lambda a: ballot(question, a), distinct), strict=True)
            )
    for turn, answer in zip(turns, answers, strict=True):
        turn.info["answer"] = counted[answer]


def given(question: Question, turn: Turn, task: Task) -> str | None:
    """The canonical answer that a reply gives; None where it gives none, or is none."""
    return task.extract(question, turn.text) if is_answer(turn) else None


def is_answer(turn: Turn) -> bool:
    """Whether a reply came to its end, and is no call of a tool that nobody answers."""
    return turn.finished and "unanswered" not in turn.info


def leading(
    votes: Sequence[Vote | None], same: Callable[[Vote, Vote], bool] = operator.eq
) -> tuple[Vote | None, int, int]:
    """Return what most vote for (the earliest among equals), how many do, and how many vote for the
    next; a None is no vote.
    """
    cast_votes = [vote for vote in votes if vote is not None]
    counts = {
        one: sum(same(one, other) for other in cast_votes) for one in dict.fromkeys(cast_votes)
    }
    best = max(counts, key=lambda vote: counts[vote], default=None)
    if best is None:
        return None, 0, 0
    others = [count for vote, count in counts.items() if not same(vote, best)]
    return best, counts[best], max(others, default=0)


def majority(answers: Sequence[str | None], task: Task) -> str | None:
    """The readable answer with most votes, the earliest among equals; None where nothing can be
    read.
    """
    return leading(answers, task.same)[0]


def clear_majority(answers: Sequence[str | None], task: Task) -> str | None:
    """The readable answer with two votes or more, and more than any other; None where there is
    none: ties and single votes are no majority, and nobody is rewarded by them.
    """
    best, votes, others = leading(answers, task.same)
    return best if votes >= 2 and votes > others else None


def most_frequent(turns: Sequence[Turn], task: Task) -> tuple[str | None, float]:
    """The answer that most of some turns give, and its share of them; 0 where nothing can be
    read.
    """
    best = majority([turn.info["answer"] for turn in turns], task)
    if best is None:
        return None, 0.0
    votes = sum(agrees(turn, best, task) for turn in turns)
    return best, votes / len(turns)


def by_answer(turns: Sequence[Turn], task: Task) -> list[list[Turn]]:
    """The turns that give the same answer, however it is spelt, in the order of the first of each;
    unreadable ones are left out.
    """
    groups = alike([turn.info["answer"] for turn in turns], task)
    return [[turns[index] for index in places] for places in groups]


def alike(answers: Sequence[str | None], task: Task) -> list[list[int]]:
    """The places of equal answers, however they are spelt, in the order of the first of each; a
    None is left out.
    """
    by_spelling: dict[str, list[int]] = {}
    for index, answer in enumerate(answers):
        if answer is not None:
            by_spelling.setdefault(answer, []).append(index)
    groups: dict[str, list[int]] = {}
    for answer, places in by_spelling.items():
        first = next((other for other in groups if task.same(other, answer)), answer)
        groups.setdefault(first, []).extend(places)
    return [sorted(places) for places in groups.values()]


def agrees(turn: Turn, answer: str, task: Task) -> bool:
    """Whether a turn's readable answer is the same as `answer`."""
    return turn.info["answer"] is not None and task.same(turn.info["answer"], answer)


async def decide(question: Question, turns: Sequence[Turn], task: Task) -> str | None:
    """`read` the turns, and return the text of the first that gives the majority's answer; None
    where no answer can be read. In a thread, since a checker may take seconds, for which other
    games do not wait.
    """

    def work() -> str | None:
        read(question, turns, task)
        best = majority([t.info["answer"] for t in turns], task)
        return next((t.text for t in turns if best is not None and agrees(t, best, task)), None)

    return await asyncio.to_thread(work)
