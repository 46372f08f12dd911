"""What an evaluation came to: cells, systems of several runs, comparisons with corrected tests,
costs.

Everything is a function of the recorded games. "Better" and "worse" are said only where the test,
corrected for the number of comparisons in its table, says so. Leaves out: playing
(`evaluation.runner`), showing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from comas.game.cost import cost
from comas.game.replies import unreadable
from comas.stats import (
    Interval,
    accuracy_interval,
    holm,
    mcnemar,
    paired_bootstrap,
    sign_flips,
    two_level,
    two_level_difference,
    wilson,
)

Record = Mapping[str, Any]
"""A game as it is written down (`evaluation.games`)."""
LEVEL = 0.05
MANY = 0.5
"""Share of a role's replies from which it is noted that they were cut or could not be read."""


class Key(NamedTuple):
    """The names of a cell."""

    system: str
    task: str
    setup: str


@dataclass(frozen=True)
class Cell:
    """One system on one task in one setup; several runs where the system is several."""

    system: str
    task: str
    setup: str
    team: str
    """Who answered: a trained team, copies of one model, single agents."""
    planned: int
    """Games per run."""
    runs: Sequence[Sequence[Record]]
    """Per run the games that were played."""
    bases: tuple[str, ...] = ()
    """The models that the runs started from."""
    seconds: float = 0.0
    """Wall time, over all processes that worked on it."""
    peak_bytes: int = 0

    @property
    def key(self) -> Key:
        return Key(self.system, self.task, self.setup)

    @property
    def records(self) -> list[Record]:
        return [r for run in self.runs for r in run]

    @property
    def single(self) -> bool:
        """Whether every question has one answer of one run: what McNemar's test is made for."""
        return len(self.runs) == 1 and len({r["agent"] for r in self.records}) == 1

    def shares(self) -> list[dict[str, float]]:
        """Per run: question -> share of right answers among those that were judged."""
        found: list[dict[str, float]] = []
        for run in self.runs:
            judged = sorted(
                (r for r in run if r["verdict"] != "failed"), key=lambda r: r["question"]
            )
            by_question = itertools.groupby(judged, key=lambda r: r["question"])
            found.append(
                {
                    q: _mean([float(r["verdict"] == "right") for r in group])
                    for q, group in by_question
                }
            )
        return found

    def tokens_per_question(self) -> float:
        """Generated tokens per question and answer: what one more answer of this kind costs."""
        return (
            _mean([sum(t["tokens"] for t in r["turns"]) for r in self.records])
            if self.records
            else 0.0
        )


def label(system: str, others: Sequence[str] = ()) -> str:
    """A system's name, by the last part of its path, or as many as tell it from `others`; of
    several runs the first and last.
    """
    parts = system.split(",")
    names = [system]
    for depth in range(1, 9):
        short = lambda name, depth=depth: "/".join(Path(name).parts[-depth:]) or name  # noqa: E731
        names = [short(part) for part in parts]
        if not {short(p) for o in others if o != system for p in o.split(",")} & set(names):
            break
    return names[0] if len(names) == 1 else f"{len(names)} runs ({names[0]} to {names[-1]})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(shares: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Run by question, over the questions that all runs were judged on, in a fixed order."""
    common = sorted(set.intersection(*(set(s) for s in shares))) if shares else []
    return [[s[q] for q in common] for s in shares]


def accuracy(cell: Cell) -> Interval | None:
    """Mean over questions (and runs) with its interval: Wilson for single answers, clustered by
    question where agents answer apart, two levels for several runs. None where nothing could be
    judged.
    """
    values = table(cell.shares())
    if not values or not values[0]:
        return None
    everything = {v for run in values for v in run}
    if len(values) > 1 and len(everything) == 1:  # all runs say the same of every question
        return accuracy_interval(values[0])
    if len(values) > 1 and len(values[0]) == 1:
        return Interval(_mean([run[0] for run in values]), 0.0, 1.0, 1)
    if len(values) > 1:
        found, _ = two_level(values)
        return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))
    if cell.single:
        return wilson(round(sum(values[0])), len(values[0]))
    return accuracy_interval(values[0])


def cell_record(cell: Cell, others: Sequence[str] = ()) -> dict[str, Any]:
    """A cell as JSON: counts, accuracy with interval, bounds over failures, tokens, seconds,
    completeness. `others` are the systems that its label has to be told from.
    """
    records = cell.records
    found = accuracy(cell)
    count = {v: sum(r["verdict"] == v for r in records) for v in ("right", "wrong", "failed")}
    total = len(records)
    turns = [t for r in records for t in r["turns"]]
    bounds = [_bound(cell, v) for v in ("wrong", "right")]
    lost = lost_replies(cell)
    return {
        "system": cell.system,
        "label": label(cell.system, others),
        "task": cell.task,
        "setup": cell.setup,
        "team": cell.team,
        "runs": len(cell.runs),
        "n": len({r["question"] for r in records}),
        "judged": found.n if found else 0,
        **count,
        "cut": sum(row["cut"] for row in lost.values()),
        "unreadable": sum(row["unreadable"] for row in lost.values()),
        "machine_failed": sum(r["error"] is not None for r in records),
        **_accuracies(found),
        "bounds": bounds,
        "complete": total / max(1, cell.planned * len(cell.runs)),
        "tokens": sum(t["tokens"] for t in turns),
        "prompt_tokens": sum(t["prompt_tokens"] for t in turns),
        "seconds": round(cell.seconds, 3),
        "peak_bytes": cell.peak_bytes,
        "cost": cost(turns),
        "failures": [
            {k: r[k] for k in ("question", "agent", "answer", "error")}
            for r in records
            if r["verdict"] == "failed"
        ],
    }


def lost_replies(cell: Cell) -> dict[str, dict[str, int]]:
    """Role -> how many replies (`turns`) there were, how many were `cut` for want of room, and how
    many the game could not read (`unreadable`).
    """
    rows: dict[str, dict[str, int]] = {}
    for record in cell.records:
        for turn in record["turns"]:
            row = rows.setdefault(turn["role"], {"turns": 0, "cut": 0, "unreadable": 0})
            row["turns"] += 1
            row["cut"] += not turn["finished"]
            row["unreadable"] += bool(unreadable(turn.get("info", {})))
    return rows


def _lost_notes(cell: Cell) -> Iterator[str]:
    """A note for each role most of whose replies were cut or could not be read."""
    where = f"{label(cell.system)}, {cell.task}, {cell.setup}"
    for role, row in lost_replies(cell).items():
        turns = row["turns"]
        if row["cut"] >= MANY * turns:
            yield (
                f"{where}: {row['cut']} of {turns} replies as {role} were cut for want of room, and"
                f" a cut answer counts as wrong: raise room.{role}"
            )
        elif row["unreadable"] >= MANY * turns:
            yield f"{where}: {row['unreadable']} of {turns} replies as {role} could not be read"


def _bound(cell: Cell, verdict: str) -> float | None:
    """Accuracy if all answers that failed had this verdict."""
    runs = [
        [{**r, "verdict": verdict if r["verdict"] == "failed" else r["verdict"]} for r in run]
        for run in cell.runs
    ]
    found = accuracy(dataclasses.replace(cell, runs=runs))
    return found.mean if found else None


def _accuracies(found: Interval | None) -> dict[str, float | None]:
    if found is None:
        return {"accuracy": None, "low": None, "high": None}
    return {"accuracy": found.mean, "low": _finite(found.low), "high": _finite(found.high)}


def _finite(value: float) -> float | None:
    """JSON has no infinity: an open end is null."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Difference:
    """How much better the second of two cells is on the same questions."""

    first: Cell
    second: Cell
    interval: Interval
    p: float
    """Two-sided, of this comparison alone."""
    test: str
    corrected: float = 1.0
    """p, corrected for the number of comparisons in its table."""

    @property
    def verdict(self) -> str:
        """`better` or `worse` only where the corrected p is below .05, else `none shown`."""
        return (
            "none shown"
            if self.corrected >= LEVEL
            else "better"
            if self.interval.mean > 0
            else "worse"
        )

    def record(self, others: Sequence[str] = ()) -> dict[str, Any]:
        """As JSON, `p` corrected like the verdict; `others` as in `cell_record`."""
        i = self.interval
        sides = (self.first, self.second)
        first, second = (
            {"system": c.system, "label": label(c.system, others), "setup": c.setup} for c in sides
        )
        return {
            "task": self.first.task,
            "setup": self.second.setup,
            "first": first,
            "second": second,
            "n": i.n,
            "difference": i.mean,
            "low": _finite(i.low),
            "high": _finite(i.high),
            "p": self.corrected,
            "p_single": self.p,
            "test": self.test,
            "verdict": self.verdict,
            "tokens": [round(c.tokens_per_question(), 1) for c in sides],
        }


def difference(first: Cell, second: Cell, seed: int = 0) -> Difference | None:
    """Second minus first on the questions that all their runs were judged on; None where there are
    fewer than two of them.
    """
    values = table([*first.shares(), *second.shares()])
    if not values or len(values[0]) < 2:
        return None
    one = values[: len(first.runs)]
    other = values[len(first.runs) :]
    if len(one) > 1 and first.system == second.system:  # the same runs in two ways
        interval, p = two_level(
            [[b - a for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]
        )
        return Difference(
            first, second, _possible(interval), p, "t over runs and questions, paired", p
        )
    if len(values) > 2:
        interval, p = two_level_difference(one, other)
        return Difference(first, second, _possible(interval), p, "t over runs and questions", p)
    gaps = [b - a for a, b in zip(one[0], other[0], strict=True)]
    interval = paired_bootstrap(gaps, seed)
    p = sign_flips(gaps, seed)
    if first.single and second.single:  # the same p, by another road
        p = mcnemar(gaps.count(1.0), gaps.count(-1.0))
        return Difference(first, second, interval, p, "McNemar, exact", p)
    return Difference(first, second, interval, p, "sign flips", p)


def _possible(difference: Interval) -> Interval:
    """The part of an interval that a difference of two accuracies can have."""
    return difference._replace(low=max(-1.0, difference.low), high=min(1.0, difference.high))


def corrected(found: Sequence[Difference | None]) -> list[Difference]:
    """Those that could be made, with p values corrected as one family (Holm)."""
    made = [d for d in found if d is not None]
    return [
        dataclasses.replace(d, corrected=p)
        for d, p in zip(made, holm([d.p for d in made]), strict=True)
    ]


def between_systems(cells: Sequence[Cell], seed: int = 0) -> list[Difference]:
    """Every other system against the first one, in each task and setup."""
    first = cells[0].system if cells else ""
    pairs = [(a, b) for a in cells if a.system == first for b in cells if b.system != first]
    return corrected(
        [difference(a, b, seed) for a, b in pairs if (a.task, a.setup) == (b.task, b.setup)]
    )


def between_setups(cells: Sequence[Cell], seed: int = 0) -> list[Difference]:
    """Every other setup against the first one, in each system and task."""
    first = cells[0].setup if cells else ""
    pairs = [(a, b) for a in cells if a.setup == first for b in cells if b.setup != first]
    return corrected(
        [difference(a, b, seed) for a, b in pairs if (a.system, a.task) == (b.system, b.task)]
    )


def votes_for(cheap: Cell, dear: Cell) -> int | None:
    """How many answers of the cheaper cell cost what one of the dearer costs; None below three,
    which no majority can use.
    """
    price = cheap.tokens_per_question()
    votes = int(dear.tokens_per_question() / price) if price > 0 else 0
    return votes if votes >= 3 else None


def notes(cells: Sequence[Cell]) -> list[str]:
    """What a reader has to know besides the numbers."""
    said = []
    for cell in {c.system: c for c in cells}.values():
        if len(cell.runs) > 1:
            bases = sorted(set(cell.bases))
            kinds = "one base model" if len(bases) == 1 else f"{len(bases)} base models"
            said.append(
                f"{label(cell.system)} of {kinds} ({', '.join(bases)}); intervals are over runs and"
                " questions" + (", and say nothing of other base models" if len(bases) == 1 else "")
            )
    for cell in cells:
        said += _lost_notes(cell)
        failed = [r for r in cell.records if r["verdict"] == "failed"]
        if failed:
            machine = [r["error"] for r in failed if r["error"]]
            raised = [r["raised"] for r in failed if "raised" in r]
            why = (
                f"; {len(machine)} by a machine, the first: {machine[0]}"
                if machine
                else "; the checker could not decide them"
            )
            if raised:
                why += (
                    f"; {len(raised)} times it broke down, first: {raised[0]} (`traceback` in"
                    " answers/)"
                )
            what = f"{label(cell.system)}, {cell.task}, {cell.setup}"
            low = _bound(cell, "wrong")
            high = _bound(cell, "right")
            bounds = (
                f" (accuracy {low:.3f} if all were wrong, {high:.3f} if right)"
                if low is not None and high is not None
                else ""
            )
            said.append(f"{what}: {len(failed)} of {len(cell.records)} answers failed{bounds}{why}")
    return said
