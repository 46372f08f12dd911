"""Report of an evaluation: cells, systems of several runs, comparisons with corrected tests, costs.

Everything is a function of the recorded games. "Better" and "worse" are said only where the test,
corrected for the number of comparisons in its table, says so. Leaves out: playing
(`evaluation.runner`), showing.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from comas.evaluation.accuracy import by_question, interval_of
from comas.game.cost import cost
from comas.game.dialogue import failing
from comas.game.judgements import unreadable
from comas.game.moves import payoff_in
from comas.stats import (
    Interval,
    accuracy_interval,
    finite,
    gain_interval,
    holm,
    mcnemar,
    seeds_interval,
    sign_flips,
    spelt,
    two_level,
    two_level_difference,
)
from comas.storage.game_log import Log

GameRecord = Mapping[str, Any]
"""A game as it is written down (`evaluation.games`)."""
LEVEL = 0.05
MANY = 0.5
"""Share of a role's replies from which it is noted that they were cut or could not be read."""


class CellKey(NamedTuple):
    """The names of a cell."""

    system: str
    task: str
    setup: str


@dataclass
class CellReport:
    """One system on one task in one setup; several runs where the system is several."""

    system: str
    task: str
    setup: str
    team: str
    """Who answered: a trained team, copies of one model, single agents."""
    planned: int
    """Games per run."""
    runs: list[list[GameRecord]]
    """Per run the games that were played."""
    bases: list[str] = field(default_factory=list)
    """The models that the runs started from."""
    seconds: float = 0.0
    """Wall time, over all processes that worked on it."""

    def add(self, log: Log) -> None:
        """Count one more run: the games that it has played."""
        self.runs.append(list(log.records))
        self.bases.append(", ".join(log.facts.get("bases", [])))
        self.seconds += log.seconds

    @property
    def key(self) -> CellKey:
        return CellKey(self.system, self.task, self.setup)

    @property
    def records(self) -> list[GameRecord]:
        return [r for run in self.runs for r in run]

    @property
    def single(self) -> bool:
        """Whether every question has one answer of one run: what McNemar's test is made for."""
        agents = {record["agent"] for record in self.records}
        return len(self.runs) == 1 and len(agents) == 1

    def shares(self) -> list[dict[str, float]]:
        """Per run: question -> share of right answers among those that were judged, in the order
        of ids.
        """
        return [dict(sorted(by_question(run).items())) for run in self.runs]

    def tokens_per_question(self) -> float:
        """Generated tokens per question and answer: what one more answer of this kind costs."""
        tokens = [sum(turn["tokens"] for turn in record["turns"]) for record in self.records]
        return _mean(tokens) if tokens else 0.0


def label(system: str, others: Sequence[str] = ()) -> str:
    """A system's name by the last part of its path, or whole where that names one of the `others`
    as well; of several runs the first and last.
    """
    runs = system.split(",")
    other_runs = [run for other in others if other != system for run in other.split(",")]
    names = [Path(run).name or run for run in runs]
    if set(names) & {Path(run).name for run in other_runs}:
        names = runs
    if len(names) == 1:
        return names[0]
    return f"{len(names)} runs ({names[0]} to {names[-1]})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(shares: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Run by question, over the questions that all runs were judged on, in a fixed order."""
    common = sorted(set.intersection(*(set(s) for s in shares))) if shares else []
    return [[s[q] for q in common] for s in shares]


def accuracy(cell: CellReport) -> Interval | None:
    """Mean over questions (and runs) with its interval: Wilson where every question is right or
    wrong as a whole, otherwise clustered by question, two levels for several runs. None where
    nothing could be judged.
    """
    values = table(cell.shares())
    if not values or not values[0]:
        return None
    first = values[0]
    if len(values) == 1:
        return interval_of(first)
    if len({share for run in values for share in run}) == 1:
        return accuracy_interval(first)  # all runs say the same of every question
    if len(first) == 1:
        return Interval(_mean([run[0] for run in values]), 0.0, 1.0, 1)
    interval, _ = two_level(values)
    return interval.within(0.0, 1.0)


def cell_record(cell: CellReport, others: Sequence[str] = ()) -> dict[str, Any]:
    """A cell as JSON: counts, accuracy with interval, tokens, seconds, completeness. `others` are
    the systems that its label has to be told from.
    """
    records = cell.records
    verdicts = Counter(record["verdict"] for record in records)
    interval = accuracy(cell)
    payoff = payoff_of(cell.runs)
    lost = lost_replies(cell).values()
    turns = [turn for record in records for turn in record["turns"]]
    return {
        "system": cell.system,
        "label": label(cell.system, others),
        "task": cell.task,
        "setup": cell.setup,
        "team": cell.team,
        "runs": len(cell.runs),
        "n": len({record["question"] for record in records}),
        "judged": interval.n if interval else 0,
        **{verdict: verdicts[verdict] for verdict in ("right", "wrong", "failed")},
        "cut": sum(row["cut"] for row in lost),
        "unreadable": sum(row["unreadable"] for row in lost),
        "machine_failed": sum(record["error"] is not None for record in records),
        "accuracy": interval.mean if interval else None,
        "low": finite(interval.low) if interval else None,
        "high": finite(interval.high) if interval else None,
        "complete": sum(record["error"] is None for record in records)
        / max(1, cell.planned * len(cell.runs)),
        "tokens": sum(turn["tokens"] for turn in turns),
        "prompt_tokens": sum(turn["prompt_tokens"] for turn in turns),
        "seconds": round(cell.seconds, 3),
        "cost": cost(turns),
        **({} if payoff is None else {"payoff": payoff}),
        "failures": [
            {key: record[key] for key in ("question", "agent", "answer", "error")}
            for record in _failed(cell)
        ],
    }


def _failed(cell: CellReport) -> list[GameRecord]:
    return [record for record in cell.records if record["verdict"] == "failed"]


def lost_replies(cell: CellReport) -> dict[str, dict[str, int]]:
    """Role -> how many replies (`turns`) there were, how many were `cut` for want of tokens, and
    how many the game could not read (`unreadable`).
    """
    rows: dict[str, dict[str, int]] = {}
    for record in cell.records:
        for turn in record["turns"]:
            row = rows.setdefault(turn["role"], {"turns": 0, "cut": 0, "unreadable": 0})
            row["turns"] += 1
            row["cut"] += not turn["finished"]
            row["unreadable"] += bool(unreadable(turn.get("info", {})))
    return rows


def difference(
    first: CellReport, second: CellReport, seed: int = 0, others: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Second minus first on the questions that all their runs were judged on, as JSON; None where
    there are fewer than two of them. `p` is that of this comparison alone, `others` are as in
    `cell_record`.
    """
    values = table([*first.shares(), *second.shares()])
    if not values or len(values[0]) < 2:
        return None
    one = values[: len(first.runs)]
    other = values[len(first.runs) :]
    gaps = [
        [b - a for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=False)
    ]  # run by run, question by question
    if len(values) == 2:
        interval = gain_interval(gaps[0])
        if first.single and second.single:
            p, test = mcnemar(gaps[0].count(1.0), gaps[0].count(-1.0)), "McNemar, exact"
        else:
            p, test = sign_flips(gaps[0], seed), "sign flips"
    else:
        test = "t over runs and questions"
        if runs_of(first.system) == runs_of(second.system):  # in two ways, or at two steps
            interval, p = two_level(gaps)
            test += ", paired"
        else:
            interval, p = two_level_difference(one, other)
        interval = interval.within(-1.0, 1.0)
    of_first, of_second = (
        {"system": cell.system, "label": label(cell.system, others), "setup": cell.setup}
        for cell in (first, second)
    )
    return {
        "task": first.task,
        "setup": second.setup,
        "first": of_first,
        "second": of_second,
        "n": interval.n,
        "difference": interval.mean,
        "low": finite(interval.low),
        "high": finite(interval.high),
        "p": p,
        "p_single": p,
        "test": test,
        "verdict": verdict(interval.mean, p),
        "tokens": [round(cell.tokens_per_question(), 1) for cell in (first, second)],
    }


def runs_of(system: str) -> list[str]:
    """Names of a system's runs, whatever their step: of `a@10,b@10` those of `a,b`."""
    return [re.sub(r"@(best|\d+)$", "", run) for run in system.split(",")]


def verdict(difference: float, p: float) -> str:
    """`better` or `worse` only where p is below .05, else `none shown`."""
    if p >= LEVEL:
        return "none shown"
    return "better" if difference > 0 else "worse"


def corrected(comparisons: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the differences that could be made, with p values corrected as one family (Holm)."""
    differences = [each for each in comparisons if each is not None]
    family = holm([each["p_single"] for each in differences])
    return [
        {**each, "p": p, "verdict": verdict(each["difference"], p)}
        for each, p in zip(differences, family, strict=True)
    ]


def against_first(
    part: Literal["system", "setup"],
    cells: Sequence[CellReport],
    seed: int = 0,
    others: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Every other system (or setup) against the first one, where all else is alike."""
    differences: list[dict[str, Any] | None] = []
    for one, other in itertools.product(cells, cells):
        first = getattr(cells[0].key, part)
        moved = other.key._replace(**{part: first})
        if one.key == moved != other.key:
            differences.append(difference(one, other, seed, others))
    return corrected(differences)


def notes(cells: Sequence[CellReport]) -> list[str]:
    """List what a reader has to know besides the numbers."""
    lines: list[str] = []
    for cell in {cell.system: cell for cell in cells}.values():
        if len(cell.runs) > 1:
            bases = sorted(set(cell.bases))
            kinds = "one base model" if len(bases) == 1 else f"{len(bases)} base models"
            beyond = ", and say nothing of other base models" if len(bases) == 1 else ""
            lines.append(
                f"{label(cell.system)} of {kinds} ({', '.join(bases)}); intervals are over runs and"
                f" questions{beyond}"
            )
    for cell in cells:
        where = f"{label(cell.system)}, {cell.task}, {cell.setup}"
        for role, row in lost_replies(cell).items():
            replies = f"of {row['turns']} replies as {role}"
            many = MANY * row["turns"]
            if row["cut"] >= many:
                lines.append(
                    f"{where}: {row['cut']} {replies} were cut at the token limit, and a cut answer"
                    f" counts as wrong: raise room.{role}"
                )
            elif row["unreadable"] >= many:
                lines.append(f"{where}: {row['unreadable']} {replies} could not be read")
        if (payoff := payoff_of(cell.runs)) is not None:
            lines.append(payoff_note(payoff, where))
        lines += failure_notes(cell.records, where)
        if failed := _failed(cell):
            why = "the checker could not decide them"
            if errors := [record["error"] for record in failed if record["error"]]:
                why = f"{len(errors)} by a machine, the first: {errors[0]}"
            if raised := [record["raised"] for record in failed if "raised" in record]:
                times = f"{len(raised)} times it broke down"
                why += f"; {times}, first: {raised[0]} (`traceback` in answers/)"
            of_all = f"{len(failed)} of {len(cell.records)} answers failed and count nowhere"
            lines.append(f"{where}: {of_all}; {why}")
    return lines


# --- games: what they were worth, and what failed within those that went on


def payoff_of(runs: Sequence[Sequence[GameRecord]]) -> dict[str, Any] | None:
    """Mean payoff per game with its interval, clustered by question, over runs and questions where
    there are several runs, and how many games were won, drawn and lost; None where no answer is the
    outcome of a game.
    """
    gains: list[dict[str, float]] = []
    outcomes: Counter[str] = Counter()
    for records in runs:
        of_run: dict[str, list[float]] = {}
        for record in records:
            payoff = payoff_in(record["answer"])
            if payoff is not None:
                of_run.setdefault(record["question"], []).append(payoff)
                outcomes[record["answer"].split()[0]] += 1
        gains.append({question: _mean(payoffs) for question, payoffs in of_run.items()})
    if not outcomes:
        return None
    values = table(gains)
    everything = [payoff for of_run in gains for payoff in of_run.values()]
    if len(gains) == 1:
        interval = seeds_interval(everything)
    elif len(values[0]) > 1 and len(set(everything)) > 1:
        interval, _ = two_level(values)
    else:  # payoffs have no bounds: without a spread nothing is known
        interval = Interval(_mean(everything), -math.inf, math.inf, len(values[0]))
    counts = {word: outcomes[word] for word in ("won", "drawn", "lost")}
    return {
        "mean": interval.mean,
        "low": finite(interval.low),
        "high": finite(interval.high),
        **counts,
    }


def payoff_note(payoff: Mapping[str, Any], where: str) -> str:
    """Put the payoff of the cell `where` into words."""
    counts = ", ".join(f"{payoff[word]} {word}" for word in ("won", "drawn", "lost"))
    mean, low, high = (payoff[key] for key in ("mean", "low", "high"))
    payoff_text = f"{mean:+.3f}" if low is None or high is None else spelt(mean, low, high, "+.3f")
    return f"{where}: mean payoff {payoff_text} per game: {counts}"


def failure_notes(records: Sequence[GameRecord], where: str) -> Iterator[str]:
    """A note for each tool most of whose calls failed, of the cell `where`."""
    infos = [turn.get("info") or {} for record in records for turn in record["turns"]]
    for tool in failing(info["call"] for info in infos if "call" in info):
        yield f"{where}: {tool.text}"
