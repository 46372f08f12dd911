"""SPIRAL (arXiv 2506.24119): games against oneself, with a running baseline per seat and game.

The game is that of `mars`. A seat's return is its payoff, minus `penalty` for each of its moves
that is not legal; all its turns are rewarded with the return minus the baseline of the seat in that
game, a running mean that is `decay` times itself and the rest this return, and lives between steps
(the paper's role-conditioned advantage estimation). With `baselines` off rewards are returns as
they are: what the paper shows to fail. Leaves out: games that an illegal move ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

from annotated_types import Interval

from comas.game.moves import by_seat
from comas.methods.mars import STABLE, play
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.types import (
    Episode,
    Memory,
    Method,
    NotNegative,
    Question,
    Role,
    State,
    Task,
    Turn,
)

Decay = Annotated[float, Interval(gt=0, lt=1)]
"""At 0 the baseline is the return itself, and nothing is rewarded; at 1 it stays 0."""


def start(questions: Sequence[Question], task: Task) -> State:
    """No game has been played: every baseline begins at 0."""
    return {"means": {}}


def settle(
    episodes: Sequence[Episode],
    task: Task,
    *,
    state: State,
    decay: Decay = 0.95,
    penalty: NotNegative = 0.05,
    baselines: bool = True,
) -> None:
    """Reward all turns of a seat with its return minus the running mean, which goes on game by
    game.
    """
    means = dict(state["means"])
    for seat, moves, gain in _games(episodes, penalty):
        means[seat] = _moved(means, seat, gain, decay)
        worth = gain - means[seat] if baselines else gain
        for turn in moves:
            turn.reward = worth


def update(
    state: State,
    episodes: Sequence[Episode],
    task: Task,
    *,
    decay: Decay = 0.95,
    penalty: NotNegative = 0.05,
) -> State:
    """The running means after the games of a step."""
    means = dict(state["means"])
    for seat, _, gain in _games(episodes, penalty):
        means[seat] = _moved(means, seat, gain, decay)
    return {"means": means}


def _games(episodes: Sequence[Episode], penalty: float) -> Iterator[tuple[str, list[Turn], float]]:
    """(game and seat, the seat's turns, its return) of each game that ended, in order."""
    for episode in episodes:
        for seat, moves in sorted(by_seat(episode).items()):
            lost = penalty * sum(not turn.info["legal"] for turn in moves)
            yield f"{episode.question.kind} {seat}", moves, moves[-1].info["payoff"] - lost


def _moved(means: dict[str, float], seat: str, gain: float, decay: float) -> float:
    """The running mean of a seat after one more return."""
    return math.fsum([decay * means.get(seat, 0.0), (1 - decay) * gain])


ROLES = {
    "move": Role("other", reward="its seat's return, against the running mean of that seat"),
}
method = Method(
    play,
    settle,
    given,
    clipped,
    {"move": 0.2},
    roles=ROLES,
    memory=Memory(start, update=update),
    needs=("rules",),
    presets={"stable": STABLE, "paper": {"kl": {}}},
    base="tiny-games",
    task="tictactoe",
    team={"a0": {}},
)
