"""How many replies a step of a run will ask for, so that a display can say how far it has come.

Leaves out: counting them (`hooks.Pulse`).
"""

from __future__ import annotations

from comas.config.policies import Resolved
from comas.config.rehearsal import Rehearsal, rehearse
from comas.hooks import Certainty, Expected


def expecting(resolved: Resolved) -> Expected:
    """What steps of this run will ask for, by a rehearsal of its game."""
    rehearsal = rehearse(resolved)
    samples = resolved.config.samples or 1

    def expected(questions: int, per_question: float | None) -> tuple[int | None, Certainty]:
        return expected_replies(rehearsal, questions * samples, questions, per_question)

    return expected


def expected_replies(
    rehearsal: Rehearsal | None, games: int, questions: int, per_question: float | None
) -> tuple[int | None, Certainty]:
    """How many replies a step of so many games will ask for, and how sure that is.

    As many as in the rehearsal of a discussion; where there is none, as many per question as in the
    step before (`per_question`).
    """
    if rehearsal is not None:
        return games * rehearsal.replies, "exactly" if rehearsal.exactly else "at most"
    if per_question is None:
        return None, "about"
    return round(questions * per_question), "about"
