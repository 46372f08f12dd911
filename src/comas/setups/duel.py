"""A game against somebody else: an agent in one seat, a script or another agent in the other.

`against` is `random`, a script of the task (`Task.seats`, such as `best`), the name of an agent, or
`team`, another agent drawn. The answer says what the game came to for the agent: `won`, `drawn` or
`lost`, and its payoff. Both seats are played: which one is drawn per question, unless `seat` says.
Leaves out: games of more than two seats, tournaments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from comas.game.agent import Agent, takers
from comas.game.moves import Script, at_random, outcome, played
from comas.types import Question, Role, Setup, Task, UserMistake

Seat = Literal["both", "first", "second"]


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    against: str = "random",
    agent: str | None = None,
    seat: Seat = "both",
) -> str | None:
    """Play one game; what it came to for the agent, which is drawn unless `agent` names it."""
    scripts: dict[str, Script] = {"random": at_random, **task.seats}
    able = takers(agents, "move")
    chosen = [each for each in able if agent in (None, each.name) and each.name != against]
    if not chosen:
        raise UserMistake(f"duel: no agent {agent!r} to play against {against}: {_names(able)}")
    team = rng.choice(chosen)
    if against in scripts:
        other: Agent | Script = scripts[against]
    else:
        others = [each for each in able if against in ("team", each.name) and each is not team]
        if not others:
            names = ", ".join([*scripts, "team"])
            raise UserMistake(
                f"duel: nobody is called against={against!r}: {names}, or an agent: {_names(able)}"
            )
        other = rng.choice(others)
    own_seat = rng.randrange(2) if seat == "both" else ("first", "second").index(seat)
    seats = [team, other] if own_seat == 0 else [other, team]
    return outcome(await played(question, seats, rng, task), own_seat)


def _names(agents: Sequence[Agent]) -> str:
    return ", ".join(each.name for each in agents) or "nobody takes role move"


setup = Setup(play, needs=("rules",), roles={"move": Role()})
