"""RLCCF (arXiv 2508.12338): different models vote on each question, each vote weighted by how sure
its model is of itself.

Every agent answers `votes` times. An agent's self-consistency is the share of its most frequent
answer, and its votes count that much; who gives the answer with the greatest weight is rewarded
with 1, others 0, compared with the agent's own answers. Nobody is rewarded where two answers have
the greatest weight, or where one voter alone gives it. One agent alone is TTRL. The formula is our
reading of the abstract: the paper's code is not public.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers
from comas.game.votes import agrees, decide, most_frequent, solved
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Count, Episode, Method, Question, Role, Task, Turn


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, votes: Count = 8
) -> str | None:
    """Have every agent solve it `votes` times; the plain majority answers."""
    able = takers(agents, "solution")
    speakers = [agent for agent in able for _ in range(votes)]
    turns = await solved(question, speakers, task)
    return await decide(question, turns, task)


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for the answer with the greatest weight, 0 for others; where there is none, 0."""
    for episode in episodes:
        label = heaviest(episode.turns, task)
        for turn in episode.turns:
            turn.reward = float(label is not None and agrees(turn, label, task))
            turn.group = f"{episode.id}/{turn.agent}"


def heaviest(turns: Sequence[Turn], task: Task) -> str | None:
    """The answer with a greater sum of weights than any other, which two turns or more give; None
    where there is none.
    """
    weights: dict[str, float] = {}
    for agent in {turn.agent for turn in turns}:
        spoken = [turn for turn in turns if turn.agent == agent]
        _, weights[agent] = most_frequent(spoken, task)
    readable = [turn for turn in turns if turn.info["answer"] is not None]
    totals: dict[str, float] = {}
    votes: dict[str, int] = {}
    for answer in dict.fromkeys(turn.info["answer"] for turn in readable):
        voters = [turn.agent for turn in readable if agrees(turn, answer, task)]
        totals[answer] = math.fsum(weights[agent] for agent in voters)
        votes[answer] = len(voters)
    best = max(totals, key=lambda answer: totals[answer], default=None)
    if best is None or votes[best] < 2:
        return None
    others = [totals[answer] for answer in totals if not task.same(answer, best)]
    return best if totals[best] > max(others, default=0.0) else None


ROLES = {
    "solution": Role("answer", reward="1 for the answer with the greatest weight, 0 for any other"),
}
TEAM = {f"a{place}": {"base": f"tiny-vote-{place}"} for place in range(4)}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    presets={"stable": {"questions": 24, "steps": 40}},
    base="tiny-vote-0",
    team=TEAM,
)
