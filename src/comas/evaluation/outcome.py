"""What an evaluation came to, as it is written at its end: cells, comparisons, costs, notes.

Leaves out: the statistics (`evaluation.report`), showing it (`cli.evaluate`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from comas.evaluation import report
from comas.evaluation.contamination import Overlap
from comas.evaluation.folder import Folder
from comas.evaluation.games import Played
from comas.evaluation.questions import overlaps
from comas.evaluation.report import Cell, Difference, Key
from comas.evaluation.spec import Plan
from comas.evaluation.teamwork import teamwork
from comas.team import spending
from comas.team.build import Team
from comas.types import Account, Question, Task, UserMistake


class Trained(NamedTuple):
    """Which questions of a task a run was trained on."""

    run: str
    task: str
    overlap: Overlap | None
    """None where its training questions cannot be read."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        unknown = {"exact": None, "near": None}
        pairs = dataclasses.asdict(self.overlap) if self.overlap else unknown
        return {"run": self.run, "task": self.task, **pairs}


def trained_on_asked(
    plan: Plan, run: str, team: Team, asked: Sequence[tuple[Task, Sequence[Question]]]
) -> list[Trained]:
    """Which of the questions that are asked a run was trained on, per task. Of a game what is held
    out is the opponent: its splits begin in the same positions.
    """
    asked = [(task, questions) for task, questions in asked if task.rules is None]
    names = [plan.places.get(run, run)]
    if run in plan.teams:
        names = team.resolved.base_names()
    return [Trained(run, task, overlap) for task, overlap in overlaps(names, asked)]


def cell_of(key: Key, rounds: Sequence[Played]) -> Cell:
    """The cell of a system, from the rounds that its runs have played."""
    logs = [played.log for played in rounds]
    return Cell(
        *key,
        team=rounds[0].team,
        planned=rounds[0].planned,
        runs=[list(log.found.values()) for log in logs],
        bases=tuple(", ".join(log.facts.get("bases", [])) for log in logs),
        seconds=sum(log.seconds for log in logs),
        peak_bytes=max(log.peak_bytes for log in logs),
    )


def outcome(
    folder: Folder,
    cells: Sequence[Cell],
    matched: Sequence[tuple[Cell, Cell]],
    accounts: Mapping[str, Mapping[str, Account]],
    trained: Sequence[Trained],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Make the report of an evaluation.

    `matched` are pairs of a vote at equal tokens and the cell that it is compared with, `accounts`
    what each run's hosts behind an API have cost, `notes` what was found before the games.
    """
    systems = folder.plan.systems
    seed = folder.plan.seed
    votes = [vote for vote, _ in matched]
    everything = list({cell.key: cell for cell in [*cells, *votes]}.values())
    equal = report.corrected([report.difference(vote, dear, seed) for vote, dear in matched])

    def records(differences: Sequence[Difference]) -> list[dict[str, Any]]:
        return [difference.record(systems) for difference in differences]

    warnings = [*_unknown(trained), *_contaminated(trained)]
    return {
        "folder": str(folder.path),
        "cells": [report.cell_record(cell, systems) for cell in everything],
        "systems": records(report.between_systems(cells, seed)),
        "setups": records(report.between_setups(cells, seed)),
        "equal_tokens": records(equal),
        "teamwork": teamwork(everything, systems),
        "api": spending.records(accounts),
        "notes": [*report.notes(everything), *warnings, *dict.fromkeys(notes)],
        "overlap": [each.record() for each in trained],
    }


def conclude(folder: Folder, games: Sequence[Mapping[str, Any]]) -> None:
    """An error where every game failed; where none did, no checkpoint is needed any more."""
    if games and all(game["error"] for game in games):
        first = games[0]["error"]
        raise UserMistake(f"{folder.path}: every game failed; the first: {first}")
    verdicts = {game["verdict"] for game in games}
    if "failed" not in verdicts:
        folder.release_checkpoints()


def _unknown(trained: Sequence[Trained]) -> Iterator[str]:
    for run, task, overlap in trained:
        if overlap is None:
            yield (
                f"{run}: its training questions cannot be read here: whether {task} was among them"
                " is not known"
            )


def _contaminated(trained: Sequence[Trained]) -> Iterator[str]:
    for run, task, overlap in trained:
        if overlap is not None and (overlap.exact or overlap.near):
            yield f"{run}, {task}: {overlap}"
