"""AZR, Absolute Zero Reasoner (arXiv 2505.03335): a proposer and a solver in one model, and rules
in the place of a judge; no questions, no labels.

A proposer writes a question, and the solver tries it `answers` times; the task's rules say which
tries are right. A proposal whose solvers succeed at a rate p is rewarded with 1 - p where p > 0,
and 0 where nobody succeeds; -1 where it is no question. A right answer is rewarded with 1, a wrong
one -0.5, an unreadable one -1. Each role has a baseline of its own. Solved questions go into a
pool, which later steps refer to and solve again. Unlike the paper, the world is the task's own
rather than three ways to ask about programs, and the answers that measure p are trained on as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.methods.shared.judging import ruled, success
from comas.methods.shared.posing import posed_again, proposed_and_solved, unwritten, with_newest
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Memory, Method, Question, Role, Share, State, Task, Whole


def start(questions: Sequence[Question], task: Task, *, seeds: Whole = 0) -> State:
    """A pool of `seeds` training questions; none is the setting without data."""
    return {"pool": [question.prompt for question in questions[:seeds]]}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    seeds: Whole = 0,
    refer: Share = 0.5,
    solve: Share = 0.5,
) -> list[Question]:
    """A share `solve` of the step from the pool, as far as it goes; the rest are proposals, of
    which a share `refer` sees an accepted question. Of the pool the first `seeds` training
    questions are asked as they are: what is read from a text need not have their form.
    """
    pool = state["pool"]
    most = int(solve * count)
    again = posed_again(rng.sample(pool, min(len(pool), most)), task, questions[:seeds])
    examples: list[str] = []
    for _ in range(count - len(again)):
        refers = bool(pool) and rng.random() < refer
        examples.append(rng.choice(pool) if refers else "")
    return again + unwritten(examples)


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 8,
) -> str | None:
    """Have a question proposed where it is a proposal, then solved; the first solution answers."""
    posed, solutions = await proposed_and_solved(question, agents, rng, task, answers)
    if posed is None:
        return None
    for solution in solutions:
        solution.info["verdict"] = ruled(posed, solution, task)
    return solutions[0].text


PAY = {"right": 1.0, "wrong": -0.5, None: -1.0}
"""Reward of a solution, by its verdict; one whose rules broke down gets none."""


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward solutions by the rules, and proposals by how hard they were."""
    for episode in episodes:
        solutions = in_role(episode, "solution")
        for turn in solutions:
            turn.reward = PAY.get(turn.info["verdict"])
        rate = success(solutions)
        difficulty = rate if rate is None or rate == 0 else 1.0 - rate
        for turn in in_role(episode, "propose"):
            turn.reward = -1.0 if turn.info["posed"] is None else difficulty


def update(state: State, episodes: Sequence[Episode], task: Task, *, pool: Count = 1000) -> State:
    """Proposals that somebody solved join the pool, each once; the oldest leave it."""
    more: list[str] = []
    for episode in episodes:
        if success(in_role(episode, "solution")):
            more += [turn.info["posed"] for turn in in_role(episode, "propose")]
    return {"pool": with_newest(state["pool"], more, pool)}


KL = {"propose": 0.1, "solution": 0.1}
ROLES = {
    "propose": Role(
        "other", reward="the share of its solvers that fail; 0 if all do, -1 if it is no question"
    ),
    "solution": Role(
        "answer", reward="1 if the rules call it right, -0.5 if wrong, -1 if unreadable"
    ),
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    grounded=True,
    memory=Memory(start, draw, update),
    needs=("pose", "check"),
    presets={"stable": {"questions": 48}, "paper": {"kl": {}}},
    base="tiny-pose",
    team={"a0": {}},
)
