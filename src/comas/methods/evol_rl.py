"""EVOL-RL (arXiv 2509.15194): the majority's answer selects, and novelty of the reasoning keeps
variety: TTRL with two bands of reward.

A question is answered `votes` times. Answers of the majority are rewarded with 0.5 to 1, others -1
to -0.5, by novelty within their band: 1 minus the half-sum of the mean similarity to their own band
and of the greatest similarity to any other reply. Unreadable ones are rewarded with -1, and all are
where there is no majority (ties and single votes are none), which teaches nothing. GRPO with a
wider upper clip and a bonus for entropy. Unlike the paper, similarity is that of runs of words,
where the paper embeds replies, and all votes are trained on (the paper: 32 of 64).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comas.game.votes import agrees, clear_majority
from comas.methods.ttrl import play
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import grams, similarity
from comas.objective.spread import is_flat
from comas.types import Episode, Method, Role, Task, Turn


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Choose bands by vote and places in them by novelty, episode by episode."""
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = -1.0
            turn.group = f"{episode.id}/{turn.policy}"
        best = clear_majority([turn.info["answer"] for turn in episode.turns], task)
        if best is None:
            continue
        readable = [turn for turn in episode.turns if turn.info["answer"] is not None]
        selected: list[Turn] = []
        others: list[Turn] = []
        for turn in readable:
            band = selected if agrees(turn, best, task) else others
            band.append(turn)
        for lowest, band in ((0.5, selected), (-1.0, others)):
            for turn, novelty in zip(band, places(band, readable), strict=True):
                turn.reward = lowest + 0.5 * novelty


def places(band: Sequence[Turn], everyone: Sequence[Turn]) -> list[float]:
    """Novelty of each reply of a band, from 0 to 1 within it; 0.5 where all are equally new."""
    if len(band) == 1:
        return [1.0]
    counts = {turn.id: grams(turn.text) for turn in everyone}
    novelties: list[float] = []
    for turn in band:
        count = counts[turn.id]
        close = {t.id: similarity(count, counts[t.id]) for t in everyone if t is not turn}
        within = [close[other.id] for other in band if other is not turn]
        mean = math.fsum(within) / len(within)
        novelties.append(1 - (mean + max(close.values())) / 2)
    if is_flat(novelties):
        return [0.5] * len(band)
    lowest = min(novelties)
    width = max(novelties) - lowest
    return [(novelty - lowest) / width for novelty in novelties]


SETTINGS = {"loss": {"clip_high": 0.28}, "credit": {"entropy": 0.003}}
STABLE = {"questions": 24, **SETTINGS}
PAPER = {"kl": {"solution": 0.001}, **SETTINGS}
ROLES = {
    "solution": Role(
        "answer",
        reward="0.5 to 1 for the majority's answer, -1 to -0.5 for others: the more, the newer",
    ),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    presets={"stable": STABLE, "paper": PAPER},
    base="tiny-vote-0",
    team={"a0": {}},
)
