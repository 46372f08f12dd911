"""How far a policy is from an equilibrium of Kuhn poker: in closed form, and from how often it
bets.

Each of the 12 things that a seat may see is shown to the policy equally often, at temperature 1,
and its bets are counted; what is not legal counts as the first legal move, as in a game. Asked is
for views rather than whole games, since games hardly reach some of them. Leaves out: other games.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from comas.game.agent import Agent, TeamMember
from comas.game.moves import Move, played
from comas.game.play import GameContext, play_all
from comas.stats import Interval
from comas.tasks import kuhn
from comas.types import HostFailure, Method, Question, Sampling, Task, UserMistake

DRAWS = 1000
"""Of the bootstrap."""


UNIFORM = dict.fromkeys(kuhn.BETS, 0.5)
"""The player that moves at random."""


def exploitability(bets: Mapping[str, float]) -> float:
    """What the best responses to a policy win of it, in chips per game, the mean of both seats.

    `bets` says for each of the 12 views how often it bets. 0 for an equilibrium, 11/24 for the
    player that moves at random. Half of the sum over seats that is called NashConv.
    """
    return (best_response(bets, 0) + best_response(bets, 1)) / 2


def best_response(bets: Mapping[str, float], seat: int) -> float:
    """The most that this seat can win of a policy in the other one, in chips per game."""
    values = [_response(bets, seat, card, "", _others(card)) for card in kuhn.CARDS]
    return sum(values)


def _others(card: str) -> dict[str, float]:
    """The other seat's cards, each with the chance of this deal."""
    return {other: 1 / len(kuhn.DEALS) for other in kuhn.CARDS if other != card}


def _response(
    bets: Mapping[str, float], seat: int, card: str, line: str, reach: Mapping[str, float]
) -> float:
    """The value of a line to a seat that holds `card`; `reach` is the chance of each card of the
    other seat, and that it has moved so.
    """
    if line in kuhn.ENDS:
        sign = 1 if seat == 0 else -1
        pairs = [(card, other) if seat == 0 else (other, card) for other in reach]
        return sum(
            sign * chance * kuhn.chips(*pair, line)
            for pair, chance in zip(pairs, reach.values(), strict=True)
        )
    if len(line.split()) % 2 == seat:
        return max(_response(bets, seat, card, after, reach) for _, after in _moves(line))
    value = 0.0
    for move, after in _moves(line):
        reached: dict[str, float] = {}
        for other, chance in reach.items():
            bet = bets[f"{other} {line}".strip()]
            reached[other] = chance * (bet if move == "bet" else 1 - bet)
        value += _response(bets, seat, card, after, reached)
    return value


def _moves(line: str) -> Iterator[tuple[str, str]]:
    """Each move with the line that it makes."""
    for move in kuhn.MOVES:
        yield move, f"{line} {move}".strip()


async def _one_move(question: Question, move: Move, rng: random.Random) -> Sequence[float]:
    """Rules of a game that ends with the first move."""
    await move(0, question.prompt, kuhn.MOVES)
    return (0.0,)


async def _play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Ask the agent for its move at one view."""
    await played(question, [agents[0]], rng, task)
    return None


def _never(*args: object) -> Any:
    raise AssertionError("nothing is settled here")


async def measured_bets(member: TeamMember, asks: int, seed: int = 0) -> dict[str, int]:
    """View -> how many of `asks` moves are bets. HostFailure where some could not be asked for."""
    if asks < 1:
        raise UserMistake(f"each view is asked for {asks} moves: at least 1")
    game = Method(_play, _never, _never, _never)
    speaking = replace(member, sampling=Sampling(), roles=None)
    context = GameContext(game, replace(kuhn.task, rules=_one_move), [speaking], seed)
    views = [Question(id=view, prompt=view) for view in kuhn.BETS]
    bets: Counter[str] = Counter()
    for episode in await play_all(context, views, "kuhn", asks):
        if episode.error is not None:
            view = episode.question.id
            raise HostFailure(f"no move of {member.name} at {view}: {episode.error}")
        bets[episode.question.id] += episode.turns[0].info["move"] == "bet"
    return {view: bets[view] for view in kuhn.BETS}


def measured_exploitability(bets: Mapping[str, int], asks: int) -> Interval:
    """The exploitability of measured frequencies, in chips per game, with the 95 % interval of the
    counts alone: frequencies are drawn from what the counts leave open (Jeffreys' prior), since a
    policy that was never seen to bet may do so.

    Noise in counts can only be exploited: near an equilibrium figure and interval are too high, by
    about .02 at 300 asks of each view.
    """
    shares = {view: count / asks for view, count in bets.items()}
    found = exploitability(shares)
    rng = np.random.default_rng(0)
    draws: list[float] = []
    for _ in range(DRAWS):
        again = {v: rng.beta(count + 0.5, asks - count + 0.5) for v, count in bets.items()}
        draws.append(exploitability(again))
    low, high = np.quantile(draws, [0.025, 0.975])
    low = min(found, float(low))
    high = max(found, float(high))
    return Interval(found, low, high, asks * len(bets))
