"""Agent0 (arXiv 2511.16043): a curriculum agent writes questions at the frontier of an executor
that has tools; they learn in turn, in phases.

As in `r_zero`, but every answer is a dialogue with the task's tools. The curriculum agent is
rewarded with min(p, 1 - p), where p is the share of the most frequent answer, plus `curiosity` for
each tool call of an answer (at most 4), minus the share of the step's questions that are like its
own; -1 for what is no question. The executor is rewarded for the frequent answer, compared within
the question, times a trust that falls from 1 to `doubt` with p (ADPO). Leaves out: ADPO's wider
clip for doubtful questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.votes import agrees, decide
from comas.methods.r_zero import (
    TEAM,
    after_step,
    at_frontier,
    draw,
    frequent,
    pay_proposals,
    start,
)
from comas.methods.shared.posing import written
from comas.methods.shared.searching import solve_with_tools
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import compare, dialogues
from comas.setups import tools
from comas.types import Count, Episode, Memory, Method, Question, Role, State, Task

MOST_CALLS = 4
"""Calls that a curriculum agent is rewarded for."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 10,
    turns: Count = 5,
) -> str | None:
    """Have a question proposed where it is a proposal, then solved; the majority answers."""
    proposal, posed = await written(question, agents, rng, task)
    if posed is None:
        return None
    solvers = [choose(agents, rng, "solution") for _ in range(answers)]
    ends = await solve_with_tools(posed, solvers, task, turns, proposal)
    return await decide(posed, ends, task)


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    state: State,
    curiosity: float = 0.05,
    doubt: float = 0.6,
    low: float = 0.3,
    high: float = 0.8,
) -> None:
    """Reward curriculum agents in their phase, executors in theirs."""
    if state["phase"] == "propose":

        def gain(episode: Episode) -> float:
            """Return how uncertain an episode's answers are, plus a bonus for their calls of
            tools.
            """
            _, certainty = frequent(episode, task)
            solving = dialogues(episode, "solution")
            calls = sum(dialogue.calls for dialogue in solving) / max(1, len(solving))
            return min(certainty, 1.0 - certainty) + curiosity * min(calls, MOST_CALLS)

        pay_proposals(episodes, gain)
        return
    for episode in episodes:
        label = state["pool"].get(episode.question.prompt)
        if label is None:
            continue
        answer, certainty = label
        solving = dialogues(episode, "solution")
        right = [float(agrees(dialogue.end, answer, task)) for dialogue in solving]
        compare(solving, right)
        above = (certainty - low) / (high - low) if high > low else 1.0
        sure = min(1.0, max(0.0, above))
        for dialogue in solving:
            dialogue.reward_all((dialogue.end.reward or 0.0) * (doubt + (1.0 - doubt) * sure))


def update(
    state: State,
    episodes: Sequence[Episode],
    task: Task,
    *,
    proposing: Count = 4,
    solving: Count = 8,
    least: Count = 16,
    low: float = 0.3,
    high: float = 0.8,
) -> State:
    """Count the steps of a phase; collect the questions at the frontier with their frequent answer
    and its share; change phases.
    """
    frontier = at_frontier(state, episodes, task, low, high)
    labels = {question: list(label) for question, label in frontier.items()}
    return after_step(state, labels, proposing, solving, least)


KL = {"propose": 0.1, "solution": 0.1}
PAPER = {"kl": {"propose": 0.01, "solution": 0.01}}
ROLES = {
    "propose": Role(
        "other", reward="uncertain answers and calls of tools, minus the share of questions like it"
    ),
    "solution": Role(
        "answer", reward="the frequent answer of the phase before, compared within the question"
    ),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    KL,
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose", "tools"),
    base="tiny-facts",
    task="facts",
    team=TEAM,
    measure=tools.play,
    presets={"stable": {"questions": 32}, "paper": PAPER},
)
