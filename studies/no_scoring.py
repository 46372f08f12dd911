"""CoMAS without its scoring role, for the ablation of studies/paper.toml: the verdict that ends the
criticism is the reward of the solution, and the opposite that of the criticism.

Leaves out: everything else; `comas.methods.comas` has the whole game.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers
from comas.game.prompts import words
from comas.methods.shared.judging import WORDING, evaluate
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Episode, Method, Question, Role, Task

WORTH = {"right": 1.0, "wrong": 0.0}


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Have one solution criticised by a colleague, where there is one."""
    author = rng.choice(takers(agents, "solution"))
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    solution = await author.ask("solution", prompt)
    readable = solution.finished and task.extract(question, solution.text) is not None
    solution.info["readable"] = readable
    if readable:
        critics = takers(agents, "evaluation")
        others = [critic for critic in critics if critic.name != author.name]
        await evaluate(question, solution, rng.choice(others or critics), task)
    return solution.text


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward a solution with its verdict, and its criticism with the opposite; 0 if unreadable."""
    for episode in episodes:
        (solution,) = in_role(episode, "solution")
        if not solution.info["readable"]:
            solution.reward = 0.0
        for criticism in in_role(episode, "evaluation"):
            worth = WORTH.get(criticism.info["verdict"])
            if worth is not None:
                solution.reward = worth
                criticism.reward = 1.0 - worth


KL = {"solution": 0.1, "evaluation": 0.5}
ROLES = {
    "solution": Role("answer", reward="1 if its critic says right, else 0"),
    "evaluation": Role("judge", reward="the opposite"),
}
method = Method(play, settle, reinforce_pp, clipped, KL, roles=ROLES)
