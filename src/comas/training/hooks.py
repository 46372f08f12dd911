"""Being told how a training run goes: the hook for displays, trackers and notebooks.

Leaves out: evaluations (`exam.Observer`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comas.stats import Interval
from comas.storage.run import Run
from comas.types import Episode, Question, Turn

if TYPE_CHECKING:
    from comas.team.build import Team


Stage = Literal[
    "estimating", "loading", "before", "playing", "learning", "validation", "after", "saving"
]
"""What a run is doing: `estimating` is of the memory that it will take; `before`, `validation` and
`after` are measurements of accuracy.
"""


@dataclass(frozen=True)
class Progress:
    """How far a stage of a run has come."""

    stage: Stage
    step: int = 0
    """The step that is under way, counted from 0; of a measurement and of saving how many steps lie
    behind.
    """
    seconds: float = 0.0
    """Since the stage began."""
    replies: int = 0
    """Replies that are complete, those included whose discussion waits for others."""
    expected: int | None = None
    """Replies of the whole stage; None where nobody knows."""
    certainty: Literal["exactly", "at most", "about"] = "exactly"
    """What `expected` is: the plan of a measurement; the most that a shipped game asks, which
    leaves out what cannot be read; as many as in the step before.
    """
    tokens: int = 0
    """Generated in this stage, also those of replies that go on."""
    speed: float | None = None
    """Generated tokens per second in the last few seconds; None before there are enough."""
    rows_due: int = 0
    """Rows to learn from in this stage, once per epoch."""
    rows_read: int = 0
    """Rows whose log-probs have been computed before the update."""
    rows_learnt: int = 0
    """Rows whose gradient has been computed."""
    questions: tuple[Question, ...] = ()
    """Under discussion, while the stage is `playing`."""


class Watch:
    """Told of what happens; every method may be overridden, none needs to be."""

    path: Path | None = None
    """The run's folder, once there is one."""

    def begin(self, run: Run, team: Team, start: int) -> None:
        """The run is about to start (or to go on) at step `start`."""

    def working(self, progress: Progress) -> None:
        """The run turns to another stage, or goes on with one: told at once, and then about four
        times per second.
        """

    def turn(self, turn: Turn) -> None:
        """Somebody said something; not yet paid."""

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """A step is written."""

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        """An accuracy: `before`, `validation` or `after`."""

    def note(self, text: str) -> None:
        """Something that its owner should know; a warning of the logger `comas`
        unless overridden.
        """
        logging.getLogger("comas").warning(text)
