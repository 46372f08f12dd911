"""A run outlives its terminal: where nobody reads any more (a closed pipe, a lost connection), it
stops in order.

The same as for SIGTERM: after the step, with everything committed. Leaves out: signals (`signals`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from comas.hooks import Alarm, Hook, Progress
from comas.stats import Interval
from comas.storage.run import Run
from comas.team.build import Team
from comas.types import Episode, Turn


class Outlet(Hook):
    """Hands everything on to `watch` until its output is gone; from then on it is silent."""

    def __init__(self, watch: Hook) -> None:
        self.watch = watch
        self.gone = False
        self.asked = False
        """Whether the run has been asked to stop: not before it listens, which it does not while it
        loads.
        """

    def begin(self, run: Run, team: Team, start: int) -> None:
        self.watch.path = self.path
        self._tell(lambda: self.watch.begin(run, team, start))

    def working(self, progress: Progress) -> None:
        self._tell(lambda: self.watch.working(progress))

    def turn(self, turn: Turn) -> None:
        self._tell(lambda: self.watch.turn(turn))

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self._tell(lambda: self.watch.step(metrics, episodes))

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        self._tell(lambda: self.watch.measured(name, step, found))

    def alarm(self, alarm: Alarm) -> None:
        self._tell(lambda: self.watch.alarm(alarm))

    def ended(self, result: Any) -> None:
        self._tell(lambda: self.watch.ended(result))

    def note(self, text: str) -> None:
        self._tell(lambda: self.watch.note(text))

    def _tell(self, tell: Callable[[], None]) -> None:
        if not self.gone:
            try:
                tell()
            except (OSError, SystemExit):  # rich leaves a closed pipe by SystemExit
                self.gone = True
        if self.gone and not self.asked and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            self.asked = True
            os.kill(os.getpid(), signal.SIGTERM)
