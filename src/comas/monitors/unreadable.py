"""Replies that the game cannot read, or that are cut for want of tokens.

Leaves out: teams that cannot play from the first step on (`training.learning_signal`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.game.judgements import unreadable
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen, per_question
from comas.types import Episode

UNREADABLE = Hypothesis("unreadable", "replies can no longer be read", 0.1)
CUT = Hypothesis("cut", "replies are cut at the token limit", 0.1)


def watch() -> Monitor:
    """Unreadable replies of a run."""
    return Unreadable()


class Unreadable(Monitor):
    """From the record of a step alone."""

    hypotheses = (UNREADABLE, CUT)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question, the share of its replies that are unreadable, and that are cut: the means
        over its games.
        """
        lost: list[tuple[Episode, float]] = []
        cut: list[tuple[Episode, float]] = []
        for game in seen.episodes:
            if not game.turns:
                continue
            unread = [turn for turn in game.turns if unreadable(turn.info)]
            unfinished = [turn for turn in game.turns if not turn.finished]
            lost.append((game, len(unread) / len(game.turns)))
            cut.append((game, len(unfinished) / len(game.turns)))
        return {"unreadable": Reading(per_question(lost)), "cut": Reading(per_question(cut))}
