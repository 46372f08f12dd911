"""MARS (arXiv 2510.15414): games against oneself, credit per turn, baselines per seat.

The task's `rules` ask the agents of two seats for moves. A move that is not legal costs `penalty`
and becomes the first legal one. A turn's return is what its seat gains from there on, discounted by
`gamma` per turn of its own; its advantage is that minus the mean return of the turns of the same
seat and game in the step, which `scale` divides by their standard deviation. Unlike the released
code, which subtracts the mean of the distinct values, the mean is that of all. Leaves out: games of
more than two seats, rewards within a game.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.moves import by_seat, outcome, played
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.spread import standardised
from comas.types import Episode, Method, NotNegative, Question, Role, Share, Task, Turn


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Play the game, with an agent drawn for each seat; what it came to for the first seat."""
    seats = [choose(agents, rng, "move"), choose(agents, rng, "move")]
    return outcome(await played(question, seats, rng, task), 0)


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    gamma: Share = 1.0,
    penalty: NotNegative = 0.05,
    scale: bool = False,
) -> None:
    """Reward each turn with what its seat gains from there on, minus the mean of its seat and
    game.
    """
    turns: dict[tuple[str, int], list[Turn]] = {}
    returns: dict[tuple[str, int], list[float]] = {}
    for episode in episodes:
        for seat, moves in by_seat(episode).items():
            key = (episode.question.kind, seat)
            turns.setdefault(key, []).extend(moves)
            returns.setdefault(key, []).extend(_returns(moves, gamma, penalty))
    for key, moves in turns.items():
        for turn, worth in zip(moves, standardised(returns[key], scale), strict=True):
            turn.reward = float(worth)


def _returns(moves: Sequence[Turn], gamma: float, penalty: float) -> list[float]:
    """Sum what a seat gains from each of its turns on."""
    returns: list[float] = []
    ahead = 0.0
    for turn in reversed(moves):
        gain = turn.info.get("payoff", 0.0)
        if not turn.info["legal"]:
            gain -= penalty
        ahead = gain + gamma * ahead
        returns.append(ahead)
    return returns[::-1]


STABLE = {"questions": 64, "samples": 2, "steps": 100}
ROLES = {
    "move": Role(
        "other", reward="what its seat gains from there on, against the mean of that seat"
    ),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    {"move": 0.2},
    roles=ROLES,
    needs=("rules",),
    presets={"stable": STABLE, "paper": {"options": {"scale": True}}},
    base="tiny-games",
    task="tictactoe",
    team={"a0": {}},
)
