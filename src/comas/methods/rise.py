"""RISE (arXiv 2505.13445): one model solves and verifies its own work, and learns both at once.

A question is solved `votes` times, and every solution is judged by its own author. The task's rules
reward a solution with 1 if it is right and 0 if not; a judge is rewarded with 1 for the verdict
that the rules give, -0.5 for another one and -1 for none. Each role is compared with its own
rewards of the step. Work that cannot be read is not judged. Unlike the paper, learning is
REINFORCE++ with a baseline per role instead of PPO with a value network, all solutions are judged
(the paper: a part of the batch), scores are verdicts, and work that is not right is worth 0 (the
released code: -0.5 where it is wrong, -1 where it cannot be read).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.prompts import solving
from comas.game.votes import given
from comas.methods.shared.judging import evaluate, ruled
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Method, Question, Role, Task, Turn


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 4,
) -> str | None:
    """Have one agent solve it `votes` times and judge each; the first accepted solution answers."""
    author = choose(agents, rng, "solution")
    judge = author if author.takes("evaluation") else choose(agents, rng, "evaluation")
    turns = await together(_solve(question, author, judge, task) for _ in range(votes))
    accepted = [turn for turn in turns if turn.info["accepted"]]
    return (accepted or turns)[0].text


async def _solve(question: Question, author: Agent, judge: Agent, task: Task) -> Turn:
    """Have it solved, and the solution judged where it can be read."""
    solution = await author.ask("solution", solving(question, task))
    solution.info["accepted"] = False
    if given(question, solution, task) is not None:
        judging = await evaluate(question, solution, judge, task)
        solution.info["accepted"] = judging.info["verdict"] == "right"
    return solution


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward solutions by the rules, and judges for saying what the rules say."""
    for episode in episodes:
        verdicts: dict[str, str | None] = {}
        for turn in in_role(episode, "solution"):
            verdict = ruled(episode.question, turn, task)
            verdicts[turn.id] = verdict
            turn.reward = None if verdict == "failed" else float(verdict == "right")
        for turn in in_role(episode, "evaluation"):
            verdict = verdicts[turn.about or ""]
            turn.reward = _reward_of(turn.info["verdict"], verdict)


def _reward_of(judgement: str | None, verdict: str | None) -> float | None:
    """Reward a judgement; None where the rules broke down."""
    if verdict == "failed":
        return None
    if judgement is None:
        return -1.0
    return 1.0 if judgement == verdict else -0.5


KL = {"solution": 0.1, "evaluation": 0.1}
ROLES = {
    "solution": Role("answer", reward="1 if the rules call it right, 0 if not"),
    "evaluation": Role(
        "judge", reward="1 for the verdict that the rules give, -0.5 for the other, -1 for none"
    ),
}
PAPER = {"kl": {"solution": 0.01, "evaluation": 0.01}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    grounded=True,
    needs=("check",),
    presets={"stable": {"questions": 48, "steps": 100}, "paper": PAPER},
    base="tiny-critic",
    team={"a0": {}},
)
