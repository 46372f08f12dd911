"""Teams against each other, and what teams make of their members.

Against each other: every row's agents against every column's, over the same questions. What is
played is the task's game, the row in the first seat, where it has `rules`, else `cross` of the
systems' method: an adversary of the row against a defender of the column. A payoff is the row's.
Only questions count whose games all ended, so that the mean of a row is that of its cells.

Their members: per cell in which a team plays, beside single answers of the same system to the same
questions,

- what it costs and gains to coordinate, after "Towards a Science of Scaling Agent Systems" (arXiv
  2512.08296), with generated tokens for its turns. With S the
  share of right answers and T the generated tokens per question: overhead T(team) / T(single) - 1,
  error amplification (1 - S(team)) / (1 - S(single));
- confidence and critique of revisions: P(right after | right before) and P(right after | wrong
  before) of arXiv 2412.19513, for each turn that revises another turn of the same agent.

Figures without data are absent, never 0. Only questions count that all runs of both were judged on.
Leaves out: which pairs play (`evaluation.runner`), showing, prompt tokens, seconds, a regression
over many tasks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from comas.evaluation.games import revisions
from comas.evaluation.report import CellReport, GameRecord, label
from comas.evaluation.setups import only_played
from comas.evaluation.spec import CROSS
from comas.game.agent import Agent, TeamMember
from comas.game.moves import facing
from comas.stats import (
    Interval,
    interval_record,
    ratio_interval,
    seeds_interval,
    share_interval,
    share_ratio_interval,
)
from comas.storage.game_log import Log
from comas.team.build import Team
from comas.types import Method, Question, Task, UserMistake, Verdict

# --- teams against each other

ROW = "row."
COLUMN = "column."
Game = Callable[..., Awaitable[float | None]]
"""`async game(question, rows, columns, rng, task)` -> the row's payoff; None: it is not known."""


def game_of(task: Task, methods: Sequence[Method]) -> Game:
    """Find the game of a task that systems of these methods play."""
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
    roles = [role for method in methods if method.cross is game for role in method.rewarded]
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

    return only_played(play, grounded=True)


def against(rows: Sequence[TeamMember], columns: Sequence[TeamMember]) -> list[TeamMember]:
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


def payoffs_in(log: Log) -> dict[str, float]:
    """Question -> payoff, of the recorded games that ended."""
    ended = [game for game in log.records if game["error"] is None]
    return {game["question"]: float(game["answer"]) for game in ended if game["answer"]}


def matrix_of(
    names: Sequence[str], payoffs: Mapping[tuple[str, str], Mapping[str, float]], asked: int
) -> dict[str, Any] | None:
    """Sum up how each row did against each column, as JSON, from what pairs (row, column) of these
    names have played, per question; None where there is no question that all have.

    `missing` are those of the questions `asked` of which a game has no payoff. `progress` is what
    the last row gains over the first, against the first column, and what the first row loses where
    the last column takes the place of the first, paired by question.
    """
    questions = sorted(set.intersection(*map(set, payoffs.values())))
    if not questions:
        return None
    values_RCQ = np.array(
        [[[payoffs[row, column][q] for q in questions] for column in names] for row in names]
    )

    def over_questions(payoffs_Q: np.ndarray) -> dict[str, float | None]:
        return interval_record(seeds_interval(payoffs_Q.tolist()))

    return {
        "names": list(names),
        "n": len(questions),
        "missing": asked - len(questions),
        "matrix": [[over_questions(cell) for cell in row] for row in values_RCQ],
        "rows": [over_questions(row) for row in values_RCQ.mean(axis=1)],
        "columns": [over_questions(column) for column in values_RCQ.mean(axis=0)],
        "mean": over_questions(values_RCQ.mean(axis=(0, 1))),
        "progress": {
            "rows": over_questions(values_RCQ[-1, 0] - values_RCQ[0, 0]),
            "columns": over_questions(values_RCQ[0, 0] - values_RCQ[0, -1]),
        },
    }


# --- a team beside single answers

Figures = dict[str, Interval]
"""Name of a figure -> its mean and interval; what there are no data for is absent."""
TEAM = "team"
"""Who answers in a record of a team's game."""
Numbers = list[list[float]]
"""Numbers per question, of each run."""


def teamwork(cells: Sequence[CellReport], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A record, as JSON, for each team's cell that has a figure; `others` are the systems that
    its label has to be told from.
    """
    records: list[dict[str, Any]] = []
    for cell in cells:
        if not cell.records or any(record["agent"] != TEAM for record in cell.records):
            continue  # agents one by one
        revised = revision_figures(cell)
        figures = coordination_figures(cell, cells) | revised
        if not figures:
            continue
        record: dict[str, Any] = {
            **cell.key._asdict(),
            "label": label(cell.system, others),
            "figures": {name: interval_record(interval) for name, interval in figures.items()},
        }
        if revised:
            record["revisions"] = revision_counts(cell)
        records.append(record)
    return records


def coordination_figures(team: CellReport, cells: Sequence[CellReport]) -> Figures:
    """Overhead and error amplification of a team beside the `single` cell of its system and task,
    where there are data for them; none without a question that both were judged on.
    """
    key = team.key._replace(setup="single")
    single = next((cell for cell in cells if cell.key == key), None)
    if single is None or len(single.runs) != len(team.runs):
        return {}
    of_team = [_by_question(run) for run in team.runs]
    of_single = [_by_question(run) for run in single.runs]
    questions = sorted(set.intersection(*map(set, [*of_team, *of_single])))
    if not questions:
        return {}

    def means(
        runs: Sequence[Mapping[str, Sequence[GameRecord]]], of: Callable[..., float]
    ) -> Numbers:
        """Per run and question the mean over its answers: over agents, where they answer alone."""
        return [[fmean(map(of, answers[question])) for question in questions] for answers in runs]

    figures: Figures = {}
    tokens_alone = means(of_single, _tokens)
    if np.any(tokens_alone):
        ratio = ratio_interval(means(of_team, _tokens), tokens_alone)
        low = max(-1.0, ratio.low - 1)
        figures["overhead"] = Interval(ratio.mean - 1, low, ratio.high - 1, ratio.n)
    wrong, wrong_alone = (
        [[1 - right for right in run] for run in means(runs, _right)]
        for runs in (of_team, of_single)
    )
    if np.any(wrong_alone):
        figures["error amplification"] = share_ratio_interval(wrong, wrong_alone)
    return figures


def _by_question(records: Sequence[GameRecord]) -> dict[str, list[GameRecord]]:
    """Question -> its answers, of questions all of whose answers were judged."""
    answers: dict[str, list[GameRecord]] = {}
    for record in records:
        answers.setdefault(record["question"], []).append(record)
    failed = {record["question"] for record in records if record["verdict"] == "failed"}
    return {question: answers[question] for question in answers.keys() - failed}


def _right(record: GameRecord) -> float:
    return float(record["verdict"] == "right")


def _tokens(record: GameRecord) -> float:
    return float(sum(turn["tokens"] for turn in record["turns"]))


# --- revisions

Change = tuple[bool, bool]
"""Right before, right after."""
KEPT, SPOILT, MENDED, LEFT = (True, True), (True, False), (False, True), (False, False)


def changes(record: GameRecord) -> Counter[Change]:
    """How often each change is there in a game; without those that could not be judged."""
    verdicts: dict[str, str] = record.get("verdicts", {})
    counts: Counter[Change] = Counter()
    for before, after in revisions(record["turns"]):
        pair = [verdicts.get(turn["id"], "failed") for turn in (before, after)]
        if "failed" not in pair:
            counts[pair[0] == "right", pair[1] == "right"] += 1
    return counts


def revision_counts(cell: CellReport) -> dict[str, int]:
    """Count all revisions (`revised`), those that were right before, and what became of these and
    of the others; from these counts everything else follows exactly.
    """
    total = sum(map(changes, cell.records), Counter[Change]())
    return {
        "revised": total.total(),
        "right_before": total[KEPT] + total[SPOILT],
        "kept": total[KEPT],
        "mended": total[MENDED],
    }


def revision_figures(cell: CellReport) -> Figures:
    """Accuracy before and after, confidence and critique; each absent where it has no case."""
    questions = sorted({record["question"] for record in cell.records})
    runs: list[dict[str, Counter[Change]]] = []
    for records in cell.runs:
        counts = {question: Counter[Change]() for question in questions}
        for record in records:
            counts[record["question"]] += changes(record)
        runs.append(counts)

    def counted(kinds: Sequence[Change]) -> Numbers:
        return [[sum(counts[q][kind] for kind in kinds) for q in questions] for counts in runs]

    def share(these: Sequence[Change], among: Sequence[Change]) -> Interval | None:
        return share_interval(counted(these), counted(among))

    every = (KEPT, SPOILT, MENDED, LEFT)
    figures = {
        "accuracy before": share((KEPT, SPOILT), every),
        "accuracy after": share((KEPT, MENDED), every),
        "confidence": share((KEPT,), (KEPT, SPOILT)),
        "critique": share((MENDED,), (MENDED, LEFT)),
    }
    return {name: interval for name, interval in figures.items() if interval is not None}
