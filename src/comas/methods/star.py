"""STaR, Self-Taught Reasoner (arXiv 2203.14465): learn the reasons that led to right answers.

An agent solves a question `votes` times, and its right solutions are learnt. Where all are wrong it
is asked once more with the answer as a hint; reasons that lead there are told it as the solution of
the question *without* the hint (rationalisation), and learnt as well. Right ones are rewarded with
1, and credit is filtered: fine-tuning on what was kept, whose mean is over the wrong ones too, so
that a step with few right ones is a small one. Unlike the paper, whose rounds begin again from the
base model, a step is a round and goes on from the last. Only `preset=paper` gives hints: they are
for models that can follow them, and the tiny models are spoilt by reasons that they could not have
found (docs/methods.md). Leaves out: few-shot prompts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.prompts import SOLVING, defuse, solving, words
from comas.game.votes import solved
from comas.objective.credit import filtered
from comas.objective.losses import plain
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Method, Question, Role, Task, Turn

WORDING = {
    **SOLVING,
    "hint": (
        "{question}\n\nThe answer is {answer}. Show step by step how to get there, as if you had"
        " not been told, and end with the answer."
    ),
}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 4,
    hints: bool = True,
) -> str | None:
    """Have one agent solve it `votes` times, with a hint where all fail; the first answers."""
    agent = choose(agents, rng, "solution")
    turns = await solved(question, [agent] * votes, task)
    await asyncio.to_thread(_verify, question, turns, task)
    failed = all(turn.info["verdict"] == "wrong" for turn in turns)
    if hints and failed and question.answer is not None:
        facts = {"question": question.prompt, "answer": defuse(question.answer)}
        hinted = await agent.ask("hint", words(WORDING, task, "hint", **facts), about=turns[0])
        await asyncio.to_thread(_verify, question, [hinted], task)
        if hinted.info["verdict"] == "right":
            taught = await agent.tell(
                "solution", solving(question, task), hinted.text, about=hinted
            )
            taught.info["verdict"] = "right"
    return turns[0].text


def _verify(question: Question, turns: Sequence[Turn], task: Task) -> None:
    """Note the verdict on each; a cut reply is wrong."""
    for turn in turns:
        verdict = task.verify(question, turn.text) if turn.finished else "wrong"
        turn.info["verdict"] = verdict


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for right solutions, told ones among them, and 0 for wrong ones, of which nothing is
    learnt; where the verifier itself failed, nothing is rewarded.
    """
    for episode in episodes:
        for turn in in_role(episode, "solution"):
            turn.reward = {"right": 1.0, "wrong": 0.0}.get(turn.info["verdict"])


ROLES = {
    "solution": Role(
        "answer",
        reward="1 if it is right, with the help of a hint or without; 0, and not learnt, if wrong",
    ),
    "hint": Role("other"),
}
method = Method(
    play,
    settle,
    filtered,
    plain,
    roles=ROLES,
    supervised=True,
    presets={"stable": {"questions": 48, "options": {"hints": False}}, "paper": {"questions": 48}},
    base="tiny",
    team={"a0": {}},
)
