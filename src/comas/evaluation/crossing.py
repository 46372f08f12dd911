"""The rounds of an evaluation in which every run plays against every other.

Leaves out: what is played and what it comes to (`evaluation.cross_play`), loading (`runner`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from comas.evaluation import cross_play
from comas.evaluation.cross_play import COLUMN, ROW, SETUP, Matrix
from comas.evaluation.folder import Folder
from comas.evaluation.games import Round
from comas.evaluation.ways import Way
from comas.game.agent import Member
from comas.storage.game_log import Log
from comas.team.build import Team
from comas.types import Host, Method, Question, Task, UserMistake

Account = Callable[[str, Mapping[str, Host]], None]
"""`account(run, hosts)` writes down what a run's hosts have cost."""


@dataclass
class Crossing:
    """All pairs of some runs, and what they have played."""

    runs: Sequence[str]
    asked: Sequence[tuple[Task, Sequence[Question]]]
    methods: Sequence[Method]
    """Of the runs."""
    folder: Folder
    account: Account
    _logs: dict[str, dict[tuple[str, str], Log]] = field(default_factory=dict[str, Any])
    """Task -> pair -> its games."""

    def check(self, teams: Sequence[Team]) -> int:
        """How many pairs there are; an error where they have no game, or nobody takes a side."""
        for task, _ in self.asked if self.runs else ():
            game = cross_play.game_of(task, self.methods)
            roles = [role for each in self.methods if each.cross is game for role in each.paid]
            for team in teams:
                check_roles(team.members, roles or ["move"])
        return len(self.runs) ** 2

    async def play(
        self,
        load: Callable[[str], Team],
        check_weights: Callable[[str, Team], None],
        play: Callable[..., Awaitable[None]],
    ) -> list[dict[str, Any]]:
        """Play all pairs, two teams at a time in memory; a matrix for each task.

        `load(run)` gives a team whose weights `check_weights` sees, `play(round, account=...)`
        plays what is missing of a round.
        """
        for row in self.runs:
            with closing(load(row)) as rows:
                check_weights(row, rows)
                for column in self.runs:
                    other = nullcontext(rows) if column == row else closing(load(column))
                    with other as columns:
                        check_weights(column, columns)
                        for each, account in self._rounds(row, rows, column, columns):
                            await play(each, account=account)
        return self._records()

    def _rounds(
        self, row: str, rows: Team, column: str, columns: Team
    ) -> Iterator[tuple[Round, Callable[[], None]]]:
        """The games of two teams, a round for each task, and how their costs are written down."""

        def account() -> None:
            self.account(row, rows.hosts)
            self.account(column, columns.hosts)

        both = joined(rows, columns)
        pair = f"{row} against {column}"
        for task, questions in self.asked:
            game = cross_play.game_of(task, self.methods)
            way = Way(SETUP, cross_play.between(game), False, {})
            log = self.folder.log(pair, task.name, SETUP)
            of_task = self._logs.setdefault(task.name, {})
            of_task[row, column] = log
            judged = cross_play.judging(task)
            yield Round(pair, pair, both, judged, questions, way, log), account

    def games(self) -> list[dict[str, Any]]:
        """All that were played, those that failed included."""
        found: list[dict[str, Any]] = []
        for of_task in self._logs.values():
            for log in of_task.values():
                found += log.found.values()
        return found

    def notes(self, crossed: Sequence[Mapping[str, Any]]) -> list[str]:
        """Which tasks have no matrix among these."""
        reason = "no question was played to its end by all pairs"
        known = {record["task"] for record in crossed}
        return [f"cross of {task}: {reason}" for task in self._logs if task not in known]

    def _records(self) -> list[dict[str, Any]]:
        """The matrix of each task, as JSON; none where no question was played by all pairs."""
        found: list[dict[str, Any]] = []
        for task in self._logs:
            made = self._matrix(task)
            if made is not None:
                found.append(made.record(task))
        return found

    def _matrix(self, name: str) -> Matrix | None:
        """Of a task, with the number of all its questions that are left out."""
        pairs = {pair: payoffs_in(log) for pair, log in self._logs[name].items()}
        made = cross_play.matrix(self.runs, pairs)
        if made is None:
            return None
        (asked,) = [len(questions) for task, questions in self.asked if task.name == name]
        return replace(made, missing=asked - made.questions)


def check_roles(members: Sequence[Member], roles: Sequence[str]) -> None:
    """An error where nobody of a team takes a role of the game."""
    for role in roles:
        if not any(member.roles is None or role in member.roles for member in members):
            names = ", ".join(member.name for member in members)
            raise UserMistake(
                f"setup {SETUP}: none of the agents {names} takes role {role!r}: see"
                " agents.<name>.roles"
            )


def joined(rows: Team, columns: Team) -> Team:
    """Both sides as one team, which belongs to them and is not to be closed."""
    hosts = {ROW + name: host for name, host in rows.hosts.items()}
    if columns is not rows:
        hosts |= {COLUMN + name: host for name, host in columns.hosts.items()}
    return replace(rows, hosts=hosts, members=cross_play.against(rows.members, columns.members))


def payoffs_in(log: Log) -> dict[str, float]:
    """Question -> payoff, of the games that ended."""
    ended = [game for game in log.found.values() if game["error"] is None]
    return {game["question"]: float(game["answer"]) for game in ended if game["answer"]}
