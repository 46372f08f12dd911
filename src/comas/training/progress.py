"""How many replies a step of a run will ask for, so that a display can say how far it has come.

Leaves out: counting them (`hooks.Pulse`).
"""

from __future__ import annotations

from comas.config.policies import Resolved
from comas.config.rehearsal import rehearse
from comas.hooks import Certainty, Expected
from comas.types import Question


def expecting(resolved: Resolved, question: Question) -> Expected:
    """What steps of this run will ask for: per question as many replies as in the step before, in
    the first one as many as a rehearsal of this question.
    """
    rehearsed = len(rehearse(resolved, question)) * (resolved.config.samples or 1)

    def expected(questions: int, per_question: float | None) -> tuple[int | None, Certainty]:
        replies = per_question or rehearsed
        return (round(questions * replies) if replies else None), "about"

    return expected
