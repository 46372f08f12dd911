"""Teams against each other: every row's agents against every column's, over the same questions.

What is played is the task's game, the row in the first seat, where it has `rules`, else `cross` of
the systems' method: an adversary of the row against a defender of the column. A payoff is the
row's. Only questions count whose games all ended, so that the mean of a row is exactly that of its
cells. Leaves out: which pairs play (`evaluation.runner`), showing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from comas.evaluation.accuracy import unsettled
from comas.evaluation.spec import CROSS
from comas.game.agent import Agent, Member
from comas.game.moves import facing
from comas.game.play import Scene, play_all
from comas.stats import Interval, interval_record, seeds_interval
from comas.storage.game_log import Log
from comas.team.build import Team
from comas.types import Method, Question, Task, UserMistake, Verdict

ROW = "row."
COLUMN = "column."
Game = Callable[..., Awaitable[float | None]]
"""`async game(question, rows, columns, rng, task)` -> the row's payoff; None: it is not known."""


def game_of(task: Task, methods: Sequence[Method]) -> Game:
    """What is played of a task by systems of these methods."""
    if task.rules is not None:
        return facing
    games = {method.cross: method.cross for method in methods if method.cross is not None}
    if len(games) != 1:
        raise UserMistake(
            f"setup {CROSS}: task {task.name} is no game, and these systems were trained by"
            f" {'several methods' if games else 'no method'} that set teams against each other:"
            " take a task with `rules`, or runs of a method with `cross` (docs/evaluation.md)"
        )
    (game,) = games.values()
    return game


def check_sides(task: Task, methods: Sequence[Method], teams: Sequence[Team]) -> None:
    """An error where these systems have no game of a task, or where nobody of a team takes a role
    of it.
    """
    game = game_of(task, methods)
    roles = [role for method in methods if method.cross is game for role in method.paid]
    for team in teams:
        for role in roles or ["move"]:
            if not any(member.roles is None or role in member.roles for member in team.members):
                names = ", ".join(member.name for member in team.members)
                raise UserMistake(
                    f"setup {CROSS}: none of the agents {names} takes role {role!r}: see"
                    " agents.<name>.roles"
                )


def between(game: Game) -> Method:
    """The game as one that a team of `against` plays; its answer is the payoff."""

    async def play(
        question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
    ) -> str | None:
        rows = [agent for agent in agents if agent.name.startswith(ROW)]
        columns = [agent for agent in agents if agent.name.startswith(COLUMN)]
        payoff = await game(question, rows, columns, rng, task)
        return None if payoff is None else repr(float(payoff))

    return Method(play, unsettled, unsettled, unsettled, grounded=True)


def against(rows: Sequence[Member], columns: Sequence[Member]) -> list[Member]:
    """Both sides as one team; sides may be the same."""
    sides = [(ROW, rows), (COLUMN, columns)]
    return [replace(one, name=side + one.name) for side, members in sides for one in members]


def joined(rows: Team, columns: Team) -> Team:
    """Both sides as one team, which belongs to them and is not to be closed."""
    hosts = {ROW + name: host for name, host in rows.hosts.items()}
    if columns is not rows:
        hosts |= {COLUMN + name: host for name, host in columns.hosts.items()}
    return replace(rows, hosts=hosts, members=against(rows.members, columns.members))


def judging(task: Task) -> Task:
    """The task with answers that are payoffs, and in which held-out questions may be posed."""

    def verify(question: Question, text: str) -> Verdict:
        return "right"  # a payoff is there, neither right nor wrong

    return replace(task, verify=verify, pose=task.pose_held_out or task.pose)


async def payoffs(
    game: Game,
    rows: Sequence[Member],
    columns: Sequence[Member],
    questions: Sequence[Question],
    task: Task,
    seed: int = 0,
) -> dict[str, float]:
    """Question -> payoff of the row, of one pair of teams; without those that did not end."""
    scene = Scene(between(game), judging(task), against(rows, columns), seed)
    episodes = await play_all(scene, questions, CROSS)
    return {e.question.id: float(e.answer) for e in episodes if e.answer is not None}


def payoffs_in(log: Log) -> dict[str, float]:
    """Question -> payoff, of the recorded games that ended."""
    ended = [game for game in log.found.values() if game["error"] is None]
    return {game["question"]: float(game["answer"]) for game in ended if game["answer"]}


@dataclass(frozen=True)
class Matrix:
    """What each row came to against each column: Q questions that all pairs have played."""

    names: Sequence[str]
    """Of rows and columns alike, in the order of training or as they were named."""
    values: Sequence[Sequence[Sequence[float]]]
    """values[i][j][q]: the payoff of i against j."""

    def cell(self, row: int, column: int) -> Interval:
        """The mean payoff of a row against a column, over questions."""
        return seeds_interval(self.values[row][column])

    def row(self, row: int) -> Interval:
        """The same against all columns: the mean of the row's cells."""
        return _mean_of(self.values[row])

    def column(self, column: int) -> Interval:
        """What all rows come to against a column: the mean of the column's cells."""
        return _mean_of([row[column] for row in self.values])

    def whole(self) -> Interval:
        """The mean of all cells."""
        return _mean_of([_means(row) for row in self.values])

    def progress(self) -> tuple[Interval, Interval]:
        """What the last row gains over the first, against the first column; and what the first row
        loses where the last column takes the place of the first. Paired by question.
        """
        first = self.values[0][0]
        gained = _minus(self.values[-1][0], first)
        lost = _minus(first, self.values[0][-1])
        return seeds_interval(gained), seeds_interval(lost)

    def cycling(self) -> float | None:
        """The share of triples of which each beats the next, in one direction or the other; i beats
        j where M(i, j) > M(j, i). None for fewer than three.
        """
        every = range(len(self.names))
        triples = list(itertools.combinations(every, 3))
        if not triples:
            return None
        rounds = [self._beats(i, j) + self._beats(j, k) + self._beats(k, i) for i, j, k in triples]
        return fmean(abs(beaten) == 3 for beaten in rounds)

    def _beats(self, one: int, other: int) -> int:
        """1, -1 or, for equals, 0."""
        won = math.fsum(self.values[one][other])
        lead = won - math.fsum(self.values[other][one])
        return (lead > 0) - (lead < 0)

    def record(self, task: str, asked: int) -> dict[str, Any]:
        """As JSON; `missing` are those of the questions asked of which a game has no payoff."""
        questions = len(self.values[0][0])
        every = range(len(self.names))
        gained, lost = self.progress()
        return {
            "task": task,
            "names": list(self.names),
            "n": questions,
            "missing": asked - questions,
            "matrix": [[interval_record(self.cell(i, j)) for j in every] for i in every],
            "rows": [interval_record(self.row(i)) for i in every],
            "columns": [interval_record(self.column(j)) for j in every],
            "mean": interval_record(self.whole()),
            "progress": {"rows": interval_record(gained), "columns": interval_record(lost)},
            "cycling": self.cycling(),
        }


def matrix(
    names: Sequence[str], found: Mapping[tuple[str, str], Mapping[str, float]]
) -> Matrix | None:
    """The matrix of what pairs (row, column) of these names have played, per question; None where
    there is no question that all have.
    """
    pairs = [found[row, column] for row in names for column in names]
    common = sorted(set(pairs[0]).intersection(*pairs))
    if not common:
        return None
    values: list[list[list[float]]] = []
    for row in names:
        of_row = [found[row, column] for column in names]
        values.append([[payoffs[question] for question in common] for payoffs in of_row])
    return Matrix(names, values)


def _means(cells: Sequence[Sequence[float]]) -> list[float]:
    """Per question the mean over cells."""
    return [math.fsum(payoffs) / len(cells) for payoffs in zip(*cells, strict=True)]


def _mean_of(cells: Sequence[Sequence[float]]) -> Interval:
    return seeds_interval(_means(cells))


def _minus(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]
