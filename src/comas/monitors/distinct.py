"""How many different answers the team gives to one question.

Answers become alike where a team collapses onto one habit, and also where it learns what is right:
a figure, no alarm by itself. Leaves out: which answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.game.judgements import answer_of
from comas.game.roles import WORK
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen
from comas.types import Episode

ALIKE = Hypothesis("alike", "answers to one question become alike", 0.3)


def watch() -> Monitor:
    """Distinct answers in a run."""
    return Distinct()


class Distinct(Monitor):
    """From the record of a step alone."""

    hypotheses = (ALIKE,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question with several answers, how alike they are: 1 where all are the same, 0 where
        no two are.
        """
        by_question: dict[str, list[str]] = {}
        for game in seen.episodes:
            by_question.setdefault(game.question.id, []).extend(_answers(game))
        several = [answers for answers in by_question.values() if len(answers) > 1]
        return {"alike": Reading([likeness(answers) for answers in several])} if several else {}


def _answers(game: Episode) -> list[str]:
    return [answer_of(turn) for turn in game.turns if turn.role in WORK]


def likeness(answers: list[str]) -> float:
    """1 minus (distinct answers - 1) / (answers - 1)."""
    return 1.0 - (len(set(answers)) - 1) / (len(answers) - 1)
