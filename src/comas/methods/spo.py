"""SPO, Self-Play Preference Optimization by win shares (arXiv 2401.04056): an answer's reward is
the share of its own policy's other answers that it beats.

An agent answers a question `votes` times, and a judge scores each `readings` times; of two answers
the one with the better mean score wins, and equal ones share the win. The share of wins is compared
within the question (GRPO). Unlike the paper, answers are compared by the scores of one judge, not
two by two, and learning is GRPO rather than a soft actor-critic.
"""

from __future__ import annotations

from collections.abc import Sequence

from comas.methods.sppo import TEAM, play, scored_of
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import mean
from comas.objective.spread import is_flat
from comas.types import Episode, Method, Role, Task


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward each answer with the share of the others that it beats; nothing without a readable
    score.
    """
    for episode in episodes:
        scored = scored_of(episode)
        if len(scored) < 2:
            continue
        for turn in scored:
            others = [other.info["mean"] for other in scored if other is not turn]
            turn.reward = mean([_beats(turn.info["mean"], other) for other in others])
            turn.group = f"{episode.id}/{turn.policy}"


def _beats(score: float, other: float) -> float:
    """1 for a higher score, 0 for a lower one, and a half for one that is equal but for
    rounding.
    """
    return 0.5 if is_flat([score, other]) else float(score > other)


ROLES = {
    "solution": Role("answer", reward="the share of the other answers that it beats"),
    "judging": Role("judge"),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    presets={"stable": {"questions": 32}},
    base="tiny-pose",
    team=TEAM,
)
