"""Whether the team's majority answer to a question is another one than when it was last asked.

Flips become rare where a majority locks in (TTRL-Guard, arXiv 2605.19444). Only questions that
return say anything: with tasks that make new ones without end, nothing is read. Leaves out: whether
an answer is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from comas.game.agent import derive_seed
from comas.game.judgements import answer_of
from comas.game.roles import WORK
from comas.monitors.monitor import Hypothesis, Monitor, Reading, Seen

LOCKED = Hypothesis("locked", "majority answers no longer change", 0.3)


def watch() -> Monitor:
    """Flips in a run."""
    return Flips()


class Flips(Monitor):
    """Remembers a digest of the last majority answer to each question."""

    hypotheses = (LOCKED,)

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Per question that was asked before, 1 where its majority answer is the same."""
        by_question: dict[str, Counter[str]] = {}
        for game in seen.episodes:
            answers = [answer_of(turn) for turn in game.turns if turn.role in WORK]
            by_question.setdefault(game.question.id, Counter()).update(answers)
        values: list[float] = []
        for question, counts in by_question.items():
            if not counts:
                continue
            majority = derive_seed(counts.most_common(1)[0][0])
            if question in self.memory:
                values.append(float(self.memory[question] == majority))
            self.memory[question] = majority
        return {"locked": Reading(values)} if values else {}
