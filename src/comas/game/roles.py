"""The roles of the shipped methods and setups, and the kind of reply that each asks for.

Metrics, monitors, evaluation and the page of `comas view` go by the kind. A role of a method of
one's own that is not here is of the kind `other`. Leaves out: what a role is asked (`WORDING` of
methods and tasks), who takes it (`agents.<name>.roles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["answer", "spoilt", "judge", "rater", "other"]
"""`answer`: it answers the question. `spoilt`: it answers wrongly on purpose. `judge`: it says
whether an answer is right. `rater`: it gives marks to something else, such as a question.
"""
KINDS: Mapping[str, Kind] = {
    "solution": "answer",
    "revision": "answer",
    "sabotage": "spoilt",
    "evaluation": "judge",
    "judging": "judge",
    "scoring": "judge",
    "rating": "rater",
    **dict.fromkeys(("assess", "attack", "blind", "comparing", "evolve", "hint"), "other"),
    **dict.fromkeys(("inject", "move", "propose", "proxy", "reading"), "other"),
}


def _of_kind(*kinds: Kind) -> tuple[str, ...]:
    return tuple(role for role, kind in KINDS.items() if kind in kinds)


ANSWERS = _of_kind("answer")
"""Roles whose replies answer the question."""
WORK = _of_kind("answer", "spoilt")
"""Roles whose replies can be judged."""
JUDGES = _of_kind("judge")
"""Roles that judge work."""
SCORED = _of_kind("judge", "rater")
"""Roles that may be asked for a score."""
