"""Who accepts whose work: judgements by judge and author, with labels where they are to be had.

A team whose members spare each other shows here, and who rejects whatever it reads. Leaves out:
judgements that cannot be read (`replies`), how well each role judges (`judges`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from comas.game.judgements import accepts, work_judged
from comas.game.roles import JUDGES
from comas.training.metrics.record import StepRecord, grouped

Pair = tuple[str, str, str]
"""Role, judge and author."""
Judgement = tuple[bool, bool | None]
"""Whether the work was accepted, and whether it is right; None where nobody knows."""


def metric(step: StepRecord) -> list[dict[str, Any]] | None:
    """A row per role, judge and author: how many judgements that can be read (`n`) of work of this
    author, of which `accepted`; and of right and of wrong work how many (`right`, `wrong`), of
    which accepted (`accepted_right`, `accepted_wrong`).
    """
    judgements = grouped(_judgements(step))
    return [_row(pair, judgements[pair]) for pair in sorted(judgements)] or None


def _judgements(step: StepRecord) -> Iterator[tuple[Pair, Judgement]]:
    turns = {turn.id: turn for turn in step.turns}
    labels = step.labels if step.task.quick else {}
    for turn in step.turns:
        verdict = accepts(turn) if turn.role in JUDGES else None
        work = work_judged(turn, turns)
        if verdict is None or work is None:
            continue
        yield (turn.role, turn.agent, work.agent), (verdict, labels.get(work.id))


def _row(pair: Pair, judgements: list[Judgement]) -> dict[str, Any]:
    role, judge, author = pair
    of_right = [accepted for accepted, right in judgements if right is True]
    of_wrong = [accepted for accepted, right in judgements if right is False]
    return {
        "role": role,
        "judge": judge,
        "author": author,
        "n": len(judgements),
        "accepted": sum(accepted for accepted, _ in judgements),
        "right": len(of_right),
        "accepted_right": sum(of_right),
        "wrong": len(of_wrong),
        "accepted_wrong": sum(of_wrong),
    }
