"""Being told how a training run goes: the hook for displays, trackers and notebooks. Leaves out: evaluations (`exam.Observer`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comas.stats import Interval
from comas.store import Run
from comas.types import Episode, Turn

if TYPE_CHECKING:
    from comas.team import Team


class Watch:
    """Told of what happens; every method may be overridden, none needs to be."""

    path: Path | None = None
    """The run's folder, once there is one."""

    def begin(self, run: Run, team: Team, start: int) -> None:
        """The run is about to start (or to go on) at step `start`."""

    def turn(self, turn: Turn) -> None:
        """Somebody said something; not yet paid."""

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """A step is written."""

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        """An accuracy: `before`, `validation` or `after`."""

    def note(self, text: str) -> None:
        """Something that its owner should know; a warning of the logger `comas` unless overridden."""
        logging.getLogger("comas").warning(text)
