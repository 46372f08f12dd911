"""Confidence and critique of revisions: how often right answers stay right, and wrong ones become
right.

CL = P(right after | right before) and CS = P(right after | wrong before) of arXiv 2412.19513, for
each turn that revises another turn of the same agent; cases are pooled, so that accuracy after is
acc CL + (1 - acc) CS exactly. Leaves out: what led to a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from comas.evaluation.report import Cell, Record
from comas.evaluation.turns import revisions
from comas.stats import Interval, share_interval

Change = tuple[bool, bool]
"""Right before, right after."""


def changes(record: Record) -> Counter[Change]:
    """How often each change is there in a game; without those that could not be judged."""
    verdicts: dict[str, str] = record.get("verdicts", {})
    found: Counter[Change] = Counter()
    for before, after in revisions(record["turns"]):
        pair = [verdicts.get(turn["id"], "failed") for turn in (before, after)]
        if "failed" not in pair:
            found[pair[0] == "right", pair[1] == "right"] += 1
    return found


def counts(cell: Cell) -> dict[str, int]:
    """Of all revisions (`revised`), those that were right before, and what became of these and of
    the others; from these counts everything else follows exactly.
    """
    total: Counter[Change] = Counter()
    for record in cell.records:
        total += changes(record)
    return {
        "revised": total.total(),
        "right_before": total[True, True] + total[True, False],
        "kept": total[True, True],
        "mended": total[False, True],
    }


def figures(cell: Cell) -> dict[str, Interval]:
    """Accuracy before and after, confidence and critique; each absent where it has no case."""
    before = _share(cell, [(True, True), (True, False)], EVERY)
    if before is None:
        return {}
    found: dict[str, Interval | None] = {
        "accuracy before": before,
        "accuracy after": _share(cell, [(True, True), (False, True)], EVERY),
        "confidence": _share(cell, [(True, True)], [(True, True), (True, False)]),
        "critique": _share(cell, [(False, True)], [(False, True), (False, False)]),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


EVERY = [(True, True), (True, False), (False, True), (False, False)]


def _share(cell: Cell, these: Sequence[Change], among: Sequence[Change]) -> Interval | None:
    """The share of some changes among others, clustered by question."""
    questions = sorted({record["question"] for record in cell.records})
    tops: list[list[int]] = []
    bottoms: list[list[int]] = []
    for run in cell.runs:
        found = _by_question(run)
        of_run = [found.get(question, Counter()) for question in questions]
        tops.append([_sum(counter, these) for counter in of_run])
        bottoms.append([_sum(counter, among) for counter in of_run])
    return share_interval(tops, bottoms)


def _by_question(records: Sequence[Record]) -> dict[Any, Counter[Change]]:
    found: dict[Any, Counter[Change]] = {}
    for record in records:
        found.setdefault(record["question"], Counter()).update(changes(record))
    return found


def _sum(counter: Counter[Change], changes: Sequence[Change]) -> int:
    return sum(counter[change] for change in changes)
