"""MAPoRL (arXiv 2502.18439): debates that are trained, each turn rewarded for what it leads to.

The game is `setups/debate`: all agents answer, read each other and answer again, over `revisions`
rounds. The task's rules give each reply v = 1 if it is right and 0 if not. Agent a is rewarded in
round t with (v_ta + sum over later rounds t' of discount^(t'-t) times the mean v of all agents in
t') over the sum of the weights. A revision that turns the agent's own wrong answer into a right one
gets `bonus` more, the reverse `bonus` less. Unlike the paper, rules take the place of a trained
verifier, one bonus that of two (for being persuaded and for changing alone), nobody has a bonus for
changes of others, and learning is REINFORCE++ without a value network. A reply on which the rules
broke down is not rewarded, and counts for no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comas.methods.shared.judging import ruled
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import mean
from comas.setups.debate import play
from comas.types import Episode, Method, Role, Share, Task, Turn


def settle(
    episodes: Sequence[Episode], task: Task, *, discount: Share = 0.3, bonus: float = 0.2
) -> None:
    """Reward each reply with its own worth and that of the rounds after it, discounted."""
    for episode in episodes:
        worth = {turn.id: _worth(episode, turn, task) for turn in episode.turns}
        last = max(turn.round for turn in episode.turns)
        rounds = [[t for t in episode.turns if t.round == at] for at in range(last + 1)]
        means = [mean([worth[turn.id] for turn in turns]) for turns in rounds]
        for turn in episode.turns:
            own_worth = worth[turn.id]
            if own_worth is None:
                continue
            turn.reward = _with_later(own_worth, means[turn.round + 1 :], discount)
            before = worth[turn.about] if turn.about is not None else None
            if before is not None:
                turn.reward += bonus * (own_worth - before)


def _with_later(own: float, later: Sequence[float | None], discount: float) -> float:
    """A reply's worth and the means of the rounds after it, weighted by their distance."""
    weights: list[float] = []
    gains: list[float] = []
    for distance, worth in enumerate(later, 1):
        if worth is not None:
            weight = discount**distance
            weights.append(weight)
            gains.append(weight * worth)
    return (own + math.fsum(gains)) / (1 + math.fsum(weights))


def _worth(episode: Episode, turn: Turn, task: Task) -> float | None:
    """1 for a reply that the rules call right, 0 for any other; None where they broke down."""
    verdict = ruled(episode.question, turn, task)
    return None if verdict == "failed" else float(verdict == "right")


KL = {"solution": 0.1, "revision": 0.1}
ROLES = {
    "solution": Role(
        "answer", reward="whether it is right, and how many are in the rounds after it"
    ),
    "revision": Role(
        "answer", reward="the same, and more or less for having changed to right or wrong"
    ),
}
STABLE = {"questions": 64, "steps": 100, "options": {"revisions": 2}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    grounded=True,
    needs=("check",),
    presets={"stable": STABLE},
    base="tiny",
    team={"a0": {}, "a1": {}},
)
