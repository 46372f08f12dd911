"""Which replies were of use: cut, unreadable and paid ones, per agent and role.

Leaves out: why (`training.learning_signal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comas.types import Turn


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


def unreadable(info: Mapping[str, Any]) -> bool | None:
    """Whether the game noted of a turn (`Turn.info`) that it could not read the reply; None where
    it notes nothing of the kind.

    Games note it as `info["readable"] = False`, or as an `answer` or a `score` that is None. Not so
    of a guess without what the question is about (`closed_book`), which may well be nothing.
    """
    if info.get("closed_book"):
        return None
    noted = [info[fact] is None for fact in ("answer", "score") if fact in info]
    if "readable" in info:
        noted.append(not info["readable"])
    return any(noted) if noted else None


def replies(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Per agent and role how many replies there were, how many were paid, cut for want of room, and
    unreadable (None: the game does not say).
    """
    rows: dict[tuple[str, str], Replies] = {}
    for turn in turns:
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
