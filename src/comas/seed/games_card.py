"""The card of the seed model of games: how legally and how well it plays, everything sampled at
temperature 1.

Leaves out: what it is taught (`games`).
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from comas.evaluation.kuhn_policy import measured_bets, measured_exploitability
from comas.game.agent import Member
from comas.game.play import Scene, play_all
from comas.hosts.build import make_local_host
from comas.seed.course import Course
from comas.seed.exercises import nothing
from comas.seed.games import RATHER, TASKS
from comas.setups import duel
from comas.stats import Interval, wilson
from comas.team.build import run_sync
from comas.types import Method, Sampling, Task

GAMES = 256
"""Games per measurement."""
ASKS = 200
"""Of each view of Kuhn poker."""
Rows = dict[str, Interval]


async def measure(member: Member, games: int = GAMES, asks: int = ASKS) -> Rows:
    """How often moves are legal and games are won, and the exploitability in Kuhn poker."""
    rows: Rows = {}
    for name, task in TASKS.items():
        seats: tuple[duel.Seat, ...] = ("first", "second")
        for seat in seats:
            won, legal = await _against_random(member, task, seat, games)
            rows[f"{name}, {seat}: wins against random moves"] = won
            rows[f"{name}, {seat}: moves that are legal"] = legal
    bets = await measured_bets(member, asks)
    rows["kuhn: exploitability, chips per game"] = measured_exploitability(bets, asks)
    return rows


async def _against_random(
    member: Member, task: Task, seat: duel.Seat, games: int
) -> tuple[Interval, Interval]:
    """The share of games that are won in a seat, and of moves that are legal."""
    game = Method(partial(duel.play, seat=seat), nothing, nothing, nothing)
    starts = task.load("test", limit=games)
    episodes = await play_all(Scene(game, task, [member], 0), starts, f"card-{seat}")
    won = [task.verify(e.question, e.answer or "") == "right" for e in episodes]
    legal = [turn.info["legal"] for episode in episodes for turn in episode.turns]
    return wilson(sum(won), len(won)), wilson(sum(legal), len(legal))


def card(folder: Path, course: Course) -> str:
    """The card as Markdown."""
    with closing(make_local_host("card", {"model": str(folder)})) as host:
        member = Member("model", host, "model", sampling=Sampling(1.0, 1.0, 64), few_words=True)
        rows = run_sync(measure(member))
    batch = ", ".join(f"{count} {game}" for game, count in course.batch.items())
    return f"""# {folder.name}

A Llama-shaped model of 0.22M parameters (2 layers, width 96), with a vocabulary of
{len(course.vocabulary)} words, for the games `comas.tasks.kuhn` and `comas.tasks.tictactoe`. It
knows nothing else.

Taught by `python -m comas.seed.teach {folder.name} {folder.name}`: {course.steps} steps of {batch}
demonstrations, from seed {course.seed}: positions of games between players that move at random,
each with one of its legal moves, whatever it is worth. In Tic-tac-toe that is any empty cell; in
Kuhn poker half of the 12 things that a seat may see bet in {100 * RATHER:.0f} of 100 and half pass
as often, in a checkerboard of cards and lines. Weights are stored in fp16 and used in fp32.

Measured on {GAMES} games of each kind and {ASKS} moves at each view of Kuhn poker (95 % intervals),
by `python -m comas.seed.measure {folder.name}`:

| | |
|---|---|
{_table(rows)}
"""


def _table(rows: Rows) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())
