"""A team's games beside single answers of the same system to the same questions.

Only questions count that all runs of both were judged on. Leaves out: what is computed from them
(`evaluation.coordination`, `evaluation.experts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comas.evaluation.report import Cell, Record

TEAM = "team"
"""Who answers in a record of a team's game."""
Numbers = list[list[float]]
"""Of each run, a number per question."""


@dataclass(frozen=True)
class Beside:
    """The games of S runs on the same Q questions."""

    questions: Sequence[str]
    team: Sequence[Sequence[Record]]
    """team[s][q]: the team's game."""
    alone: Sequence[Sequence[Sequence[Record]]]
    """alone[s][q]: the answer of each agent, in the order of their names."""

    def of(self, questions: Sequence[str]) -> Beside:
        """The same on some of the questions, in this order."""
        places = [self.questions.index(question) for question in questions]
        return Beside(
            questions,
            [[run[place] for place in places] for run in self.team],
            [[run[place] for place in places] for run in self.alone],
        )

    def right(self) -> Numbers:
        """1 where the team is right, else 0."""
        return [[_right(record) for record in run] for run in self.team]

    def right_alone(self) -> Numbers:
        """The share of agents that are right by themselves."""
        return [[_mean([_right(record) for record in each]) for each in run] for run in self.alone]

    def tokens(self) -> Numbers:
        """Generated tokens of the team's game."""
        return [[_tokens(record) for record in run] for run in self.team]

    def tokens_alone(self) -> Numbers:
        """Generated tokens of a single answer, the mean over agents."""
        return [[_mean([_tokens(record) for record in each]) for each in run] for run in self.alone]


def is_team(cell: Cell) -> bool:
    """Whether a team plays in this cell, rather than agents one by one."""
    return all(record["agent"] == TEAM for record in cell.records)


def beside(team: Cell, cells: Sequence[Cell]) -> Beside | None:
    """The team's games beside the `single` cell of its system and task; None where there is none,
    or no question that both were judged on.
    """
    key = team.key._replace(setup="single")
    single = next((cell for cell in cells if cell.key == key), None)
    if single is None or len(single.runs) != len(team.runs):
        return None
    of_team = [_by_question(run) for run in team.runs]
    of_single = [_by_question(run) for run in single.runs]
    judged = [set(_judged(found)) for found in [*of_team, *of_single]]
    questions = sorted(set.intersection(*judged))
    if not questions:
        return None
    return Beside(
        questions,
        [[found[question][0] for question in questions] for found in of_team],
        [[found[question] for question in questions] for found in of_single],
    )


def _by_question(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=_agent):
        found.setdefault(record["question"], []).append(record)
    return found


def _agent(record: Record) -> str:
    return record["agent"]


def _judged(found: dict[str, list[Record]]) -> list[str]:
    """The questions all of whose answers were judged."""
    return [
        question
        for question, records in found.items()
        if all(record["verdict"] != "failed" for record in records)
    ]


def _right(record: Record) -> float:
    return float(record["verdict"] == "right")


def _tokens(record: Record) -> float:
    return float(sum(turn["tokens"] for turn in record["turns"]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
