"""How often a team is right: the same questions for every agent, one verdict per answer.

For the measurements of a run; `comas eval` is `runner` and `report`. Leaves out: how they are asked
(`evaluation.setups`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comas.game.play import GameContext, play_all
from comas.questions.checked import place_of
from comas.stats import Interval, accuracy_interval, gain_interval, wilson
from comas.types import Episode, Question, Task, UserMistake

Answer = Mapping[str, Any]
"""One agent's answer to one question, as it is recorded: `question agent text verdict tokens
seconds`; the verdict is right, wrong, or failed (the machine or the verifier broke down: left out
of every count; then `raised` and `traceback` may be there too, see `judged`).
"""


async def answer_all(
    context: GameContext, questions: Sequence[Question], occasion: str
) -> list[Answer]:
    """Every member of a context answers every question by itself, side by side, so that hosts can
    batch all of them; nothing is kept for learning.
    """
    played: list[tuple[str, asyncio.Task[list[Episode]]]] = []
    async with asyncio.TaskGroup() as group:
        for member in context.members:
            alone = replace(context, members=[member])
            playing = play_all(alone, questions, f"{occasion}/{member.name}")
            played.append((member.name, group.create_task(playing)))
    return [
        _judge(episode, name, context.task)
        for name, episodes in played
        for episode in episodes.result()
    ]


def _judge(episode: Episode, agent: str, task: Task) -> Answer:
    verdict = "failed" if episode.error else "wrong"
    broken: dict[str, str] = {}
    if episode.answer is not None and not episode.error:
        verdict, broken = judged(task, episode.question, episode.answer)
    return {
        **broken,
        "question": episode.question.id,
        "agent": agent,
        "text": episode.answer,
        "verdict": verdict,
        "tokens": sum(t.tokens for t in episode.turns),
        "seconds": sum(t.seconds for t in episode.turns),
    }


def judged(task: Task, question: Question, answer: str) -> tuple[str, dict[str, str]]:
    """The verdict on an answer, and where a task of the user's own broke down over it what is
    recorded of that.

    `raised` is the error in a line, with its place; `traceback` is for who mends it. Our own
    verifiers may not raise.
    """
    try:
        return task.verify(question, answer), {}
    except UserMistake:
        raise
    except Exception as error:
        if getattr(task.verify, "__module__", "").startswith("comas."):
            raise
        where = place_of(error, task.verify)
        line = f"verify failed in {where}: {type(error).__name__}: {error}"
        lines = traceback.format_exception(error)
        return "failed", {"raised": " ".join(line.split()), "traceback": "".join(lines)}


def accuracy(answers: Sequence[Answer]) -> Interval | None:
    """Mean over agents of single answers with an interval clustered by question, Wilson's where
    every question is right or wrong as a whole, as of one agent; None if nothing could be judged.
    """
    shares = list(by_question(answers).values())
    return interval_of(shares) if shares else None


def interval_of(shares: Sequence[float]) -> Interval:
    """The mean of shares per question, at least one, with the interval of `accuracy`."""
    if set(shares) <= {0.0, 1.0}:
        return wilson(round(sum(shares)), len(shares))
    return accuracy_interval(shares)


def by_agent(answers: Sequence[Answer]) -> dict[str, float]:
    """Agent -> its share of right answers; an agent of whom nothing could be judged is left out."""
    return dict(sorted(_shares("agent", answers).items()))


def paired_gain(before: Sequence[Answer], after: Sequence[Answer]) -> Interval | None:
    """Mean over questions of the change in the agents' share of right answers to the same
    questions. What was measured before counts of those agents that were measured after too.
    """
    agents = {answer["agent"] for answer in after}
    shares_before = by_question([answer for answer in before if answer["agent"] in agents])
    shares_after = by_question(after)
    in_both = sorted(shares_before.keys() & shares_after.keys())
    differences = [shares_after[question] - shares_before[question] for question in in_both]
    return gain_interval(differences) if differences else None


def by_question(answers: Sequence[Answer]) -> dict[str, float]:
    """Question -> share of right answers, without those that could not be judged."""
    return _shares("question", answers)


def _shares(key: str, answers: Sequence[Answer]) -> dict[str, float]:
    verdicts: dict[str, list[bool]] = {}
    for answer in answers:
        if answer["verdict"] != "failed":
            verdicts.setdefault(answer[key], []).append(answer["verdict"] == "right")
    return {name: sum(right) / len(right) for name, right in verdicts.items()}


def copied(answers: Sequence[Answer], measured: Mapping[str, str]) -> list[Answer]:
    """The answers of those that were measured, and the same again under the names
    of their equals.
    """
    return [
        {**answer, "agent": agent}
        for agent, original in measured.items()
        for answer in answers
        if answer["agent"] == original
    ]
