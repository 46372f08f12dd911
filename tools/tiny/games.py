"""What the tiny model of games is taught: legal moves at random, in `kuhn` and `tictactoe`.

Demonstrations are positions of games between players that move at random, each with one of its
legal moves: the model learns the form and the rules, never which move is good. A cell is any empty
one. In Kuhn poker each view has a habit, to bet in `RATHER` of 100 or to pass, in a checkerboard
that has nothing to do with what the cards are worth: a model that was taught to bet in 50 of 100
whatever it sees reads no card, and learnt to read none in eighty steps of self-play. Words of its
own: cards, marks, cells. Leaves out: any payoff.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal

from comas.game.agent import TeamMember
from comas.game.moves import at_random
from comas.game.play import GameContext, play_all
from comas.setups import duel
from comas.stats import Interval, wilson
from comas.tasks import kuhn, tictactoe
from comas.types import Method, Question, Task
from tools.kuhn_policy import measured_bets, measured_exploitability
from tools.tiny.course import Course, World
from tools.tiny.exercises import nothing
from tools.tiny.posed_roles import Rows

PLAYED = 1500
"""Games of each kind that the positions are taken from."""
TASKS = {"kuhn": kuhn.task, "tictactoe": tictactoe.task}
Seat = Literal["first", "second"]
SEATS: tuple[Seat, ...] = ("first", "second")
SEED = 10
ASKS = 200
"""Of each view of Kuhn poker."""
RATHER = 0.75
"""How often a view of Kuhn poker bets whose habit is to bet; the others pass as often."""


def habits() -> dict[str, float]:
    """View of Kuhn poker -> how often it bets: a checkerboard of cards and lines, whose
    exploitability is .469 (uniform moves: .458).
    """
    lines = ("", "pass", "bet", "pass bet")
    bets: dict[str, float] = {}
    for (i, card), (j, line) in itertools.product(enumerate(kuhn.CARDS), enumerate(lines)):
        view = f"{card} {line}".strip()
        bets[view] = RATHER if (i + j) % 2 else 1 - RATHER
    return bets


@lru_cache(maxsize=1)
def positions_of_games() -> list[Question]:
    """Positions of `PLAYED` games of each kind between players that move at random; their legal
    moves are in `meta`.
    """
    rng = random.Random(f"games {SEED}")
    positions: list[Question] = []
    for game, task in TASKS.items():
        for start in task.load("test", copies=PLAYED, limit=PLAYED):
            positions += asyncio.run(_positions(game, start, rng))
    return positions


async def _positions(game: str, start: Question, rng: random.Random) -> list[Question]:
    """The positions of one game between players that move at random."""
    positions: list[Question] = []

    async def move(seat: int, view: str, legal: Sequence[str]) -> str:
        name = f"{start.id}-{len(positions)}"
        facts = {"legal": list(legal)}
        positions.append(Question(id=name, prompt=view, kind=game, meta=facts))
        return at_random(view, legal, rng)

    rules = TASKS[game].rules
    assert rules is not None
    await rules(start, move, rng)
    return positions


def demonstration(rng: random.Random, role: str) -> tuple[str, str]:
    """One (prompt, move) of the game `role`; the move is any legal one."""
    positions = positions_of_games()
    position = rng.choice(positions)
    while position.kind != role:
        position = rng.choice(positions)
    legal = position.meta["legal"]
    if role != "kuhn":
        return prompt_of(position), rng.choice(legal)
    bets = rng.random() < habits()[position.prompt]
    return prompt_of(position), "bet" if bets else "pass"


def prompt_of(position: Question) -> str:
    """A position as the tiny model is asked."""
    template = TASKS[position.kind].wording["move_seed"]
    return template.replace("{question}", position.prompt)


async def measure(member: TeamMember, games: int, asks: int = ASKS) -> Rows:
    """How often moves are legal and how often `games` are won, and the exploitability in Kuhn
    poker.
    """
    rows: Rows = {}
    for name, task in TASKS.items():
        for seat in SEATS:
            won, legal = await _against_random(member, task, seat, games)
            rows[f"{name}, {seat}: wins against random moves"] = won
            rows[f"{name}, {seat}: moves that are legal"] = legal
    bets = await measured_bets(member, asks)
    rows["kuhn: exploitability, chips per game"] = measured_exploitability(bets, asks)
    return rows


async def _against_random(
    member: TeamMember, task: Task, seat: Seat, games: int
) -> tuple[Interval, Interval]:
    """The share of games that are won in a seat, and of moves that are legal."""
    game = Method(partial(duel.play, seat=seat), nothing, nothing, nothing)
    starts = task.load("test", limit=games)
    episodes = await play_all(GameContext(game, task, [member], 0), starts, f"card-{seat}")
    won = [task.verify(e.question, e.answer or "") == "right" for e in episodes]
    legal = [turn.info["legal"] for episode in episodes for turn in episode.turns]
    return wilson(sum(won), len(won)), wilson(sum(legal), len(legal))


COURSE = Course(
    seed=SEED,
    batch={"kuhn": 24, "tictactoe": 88},
    steps=1300,
    world=World(
        tasks=("kuhn", "tictactoe"),
        words=("kuhn", *kuhn.CARDS, *kuhn.MOVES, "board", "x", "o", *tictactoe.CELLS),
        demonstration=demonstration,
        measure=measure,
        lessons=(
            "Positions of games between players that move at random, each with one of its legal"
            " moves, whatever it is worth. In Tic-tac-toe that is any empty cell; in Kuhn poker"
            f" half of the 12 things that a seat may see bet in {100 * RATHER:.0f} of 100 and half"
            " pass as often, in a checkerboard of cards and lines."
        ),
        alone=True,
    ),
)
