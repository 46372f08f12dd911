"""Multi-agent debate (arXiv 2305.14325): answer, read what the others answered, revise; after some
rounds the majority decides.

Every agent takes part. A revision sees the agent's own last answer and all others' last answers,
the oldest of which are left out where they do not fit. Published settings: three agents, one answer
and one revision. Leaves out: judges, summaries.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from typing import Any

from comas.game.agent import Agent, takers, together
from comas.game.prompts import SOLVING, defuse, words
from comas.game.votes import decide, solved
from comas.types import Question, Role, Setup, Task, Turn, Whole

WORDING = {
    **SOLVING,
    "revision": (
        "{question}\n\nYour answer so far:\n{own}\n\n{history}\nUse what is right in them, check"
        " the rest, and give your own answer again."
    ),
    "history_bare": "Another agent answered:\n{work}\n",
}
Ask = Coroutine[Any, Any, Turn]


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    revisions: Whole = 1,
) -> str | None:
    """Answer with the first of the last round's replies that give the majority's answer.

    None where none of them can be read.
    """
    able = takers(agents, "solution")
    turns = await solved(question, able, task, WORDING)
    for at in range(1, revisions + 1):
        revised = [
            _revise(question, agent, index, turns, task, at) for index, agent in enumerate(able)
        ]
        turns = await together(revised)
    return await decide(question, turns, task)


def _revise(
    question: Question, agent: Agent, own: int, turns: Sequence[Turn], task: Task, at: int
) -> Ask:
    """Ask for the answer of `turns[own]` again, after those of the others."""
    works = [defuse(task.shown(question, turn.text)) for turn in turns]
    others = [
        words(WORDING, task, "history_bare", work=work)
        for index, work in enumerate(works)
        if index != own
    ]

    def prompt(quotes: Sequence[str]) -> str:
        answers = "\n".join(quotes)
        text = question.prompt
        return words(WORDING, task, "revision", history=answers, question=text, own=works[own])

    return agent.ask("revision", prompt, history=others, about=turns[own], round=at)


setup = Setup(play, roles={"solution": Role("answer"), "revision": Role("answer")})
