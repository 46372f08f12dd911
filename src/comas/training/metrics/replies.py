"""How many replies were paid, cut for want of room and unreadable, per agent and role.

Leaves out: why (`training.learning_signal`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from comas.game.judgements import unreadable
from comas.training.metrics.record import StepRecord


@dataclass
class Replies:
    """Of one agent in one role."""

    agent: str
    role: str
    turns: int = 0
    paid: int = 0
    cut: int = 0
    """For want of room."""
    unreadable: int | None = None
    """None: the game does not say."""


def metric(step: StepRecord) -> list[dict[str, Any]]:
    """Per agent and role how many replies there were, how many were paid, cut for want of room, and
    unreadable (None: the game does not say).
    """
    rows: dict[tuple[str, str], Replies] = {}
    for turn in step.turns:
        key = (turn.agent, turn.role)
        row = rows.get(key)
        if row is None:
            row = rows[key] = Replies(*key)
        row.turns += 1
        row.paid += turn.reward is not None
        row.cut += not turn.finished
        if (lost := unreadable(turn.info)) is not None:
            row.unreadable = (row.unreadable or 0) + lost
    return [asdict(rows[key]) for key in sorted(rows)]
