"""How far policies are from an equilibrium of Kuhn poker: `benchmarks/kuhn.py RUN@40 seed-games`.

Each of the 12 things that a seat may see is shown to the policy `--asks` times, at temperature 1,
and how often it bets is counted; what is not legal counts as the first legal move, as in a game.
Exploitability (`tasks.kuhn`) is computed from these frequencies in closed form: what best responses
win of the policy, in chips per game, 0 for an equilibrium, .458 for random moves. The interval is
of the counts alone (parametric bootstrap); noise in the counts can only be exploited, so that the
figure is a little too high, by about .02 with 500 asks. Asked is for views rather than games, since
games hardly reach some of them. Leaves out: teams of several policies but their first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from comas.evaluation.systems import system_team
from comas.game.agent import Agent, Member
from comas.game.moves import played
from comas.game.play import Scene, play_all
from comas.stats import Interval
from comas.tasks import kuhn
from comas.types import Method, Question, Sampling, Task

ASKS = 500
DRAWS = 1000
"""Of the bootstrap."""


async def _one_view(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Ask for the move at one view: a game that ends with it."""

    async def rules(asked: Question, move: Any, rng: random.Random) -> Sequence[float]:
        await move(0, asked.prompt, kuhn.MOVES)
        return (0.0,)

    await played(question, [agents[0]], rng, replace(task, rules=rules))
    return None


def _unsettled(*args: object) -> Any:
    raise AssertionError("nothing is settled here")


def measured_bets(member: Member, asks: int, seed: int) -> dict[str, int]:
    """View -> how many of `asks` moves are bets."""
    game = Method(_one_view, _unsettled, _unsettled, _unsettled)
    speaking = replace(member, sampling=Sampling(1.0, 1.0, 64), roles=None)
    scene = Scene(game, kuhn.task, [speaking], seed)
    views = [Question(id=view, prompt=view) for view in kuhn.BETS]
    episodes = asyncio.run(play_all(scene, views, "kuhn", asks))
    bets: Counter[str] = Counter()
    for episode in episodes:
        bets[episode.question.id] += episode.turns[0].info["move"] == "bet"
    return {view: bets[view] for view in kuhn.BETS}


def exploitability(bets: Mapping[str, int], asks: int) -> Interval:
    """The exploitability of the measured frequencies, with its interval."""
    found = kuhn.exploitability({view: count / asks for view, count in bets.items()})
    rng = np.random.default_rng(0)
    draws: list[float] = []
    for _ in range(DRAWS):
        again = {view: rng.binomial(asks, count / asks) / asks for view, count in bets.items()}
        draws.append(kuhn.exploitability(again))
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(found, float(low), float(high), asks * len(bets))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("systems", nargs="+", help="runs (RUN, RUN@40, RUN@best) or bases")
    parser.add_argument("--asks", type=int, default=ASKS, help="of each view")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.systems:
        with closing(system_team(name)) as team:
            bets = measured_bets(team.members[0], args.asks, args.seed)
        found = exploitability(bets, args.asks)
        shares = {view: count / args.asks for view, count in bets.items()}
        rows.append({"system": name, **found._asdict(), "bets": shares})
        print(f"{name}: exploitability {found}")
        print("  bets: " + ", ".join(f"{view} {share:.2f}" for view, share in shares.items()))
    if args.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
