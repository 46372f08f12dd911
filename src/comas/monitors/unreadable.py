"""Replies that the game cannot read, or that are cut for want of room.

Leaves out: teams that cannot play from the first step on (`training.learning_signal`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.game.judgements import unreadable
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

UNREADABLE = Hypothesis("unreadable", "replies can no longer be read", 0.1)
CUT = Hypothesis("cut", "replies are cut for want of room", 0.1)


def watch() -> Monitor:
    """Unreadable replies of a run."""
    return Unreadable()


class Unreadable(Monitor):
    """From the record of a step alone."""

    hypotheses = (UNREADABLE, CUT)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question, the share of its replies that are unreadable, and that are cut."""
        lost: list[float] = []
        cut: list[float] = []
        for turns in (game.turns for game in seen.episodes if game.turns):
            unread = [turn for turn in turns if unreadable(turn.info)]
            unfinished = [turn for turn in turns if not turn.finished]
            lost.append(len(unread) / len(turns))
            cut.append(len(unfinished) / len(turns))
        return {"unreadable": Reading(lost), "cut": Reading(cut)}
