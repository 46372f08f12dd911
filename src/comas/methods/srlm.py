"""Self-Rewarding Language Models (arXiv 2401.10020): the author is its own judge, and learns by
iterative DPO.

An agent answers a question `votes` times, and each answer is scored `readings` times: by its author
where it takes that role, as by default, and by others where not. The best and the worst are a pair
for DPO, whose reference is the policy at the start of the step, so that a step is a round of the
paper. Judging is not trained on, as in the paper after its seed data. Unlike the paper, prompts are
the task's own (the paper writes new ones), and scores go from 1 to 3 (the paper: 0 to 5). Whether
reward and accuracy part, as they may where a judge is its own author, is what the metric `pay` of a
run shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.methods import sppo
from comas.methods.shared.judging import Score
from comas.methods.sppo import pay_extremes, scored_of
from comas.objective.losses import plain
from comas.objective.preference import dpo
from comas.types import Count, Episode, Method, Question, Role, Task


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 5,
    readings: Count = 1,
    score: Score = "text",
) -> str | None:
    """Play SPPO's game with one agent as author and judge, where one takes both roles."""
    author = choose(agents, rng, "solution")
    team = [author] if author.takes("judging") else agents
    return await sppo.play(question, team, rng, task, votes=votes, readings=readings, score=score)


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward the best and the worst answer of an episode with their mean score; others are not
    rewarded.
    """
    for episode in episodes:
        scored = scored_of(episode)
        pay_extremes(episode, scored, [turn.info["mean"] for turn in scored])


SETTINGS = {"options": {"votes": 4, "readings": 3}, "credit": {"beta": 0.1, "reference": "step"}}
ROLES = {
    "solution": Role(
        "answer", reward="its own mean score, for the best and the worst of its answers"
    ),
    "judging": Role("judge"),
}
method = Method(
    play,
    settle,
    dpo,
    plain,
    roles=ROLES,
    fresh=True,
    epochs=2,
    minibatches=2,
    presets={"stable": {"questions": 32, "steps": 100, **SETTINGS}},
    base="tiny-pose",
    team={"a0": {}},
)
