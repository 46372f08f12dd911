"""What a tracker is: a file with `open(run) -> Sink`; comas calls its sink with one step after the
other.

`wandb` is `comas.trackers.wandb`, `./mine.py` that file. Leaves out: which steps and figures
(`tracker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = "comas"
"""Where runs go, unless the tracker's own environment variable says otherwise."""


@dataclass(frozen=True)
class Tracked:
    """The run that a sink is opened for."""

    name: str
    """What people call it: the name of its folder."""
    id: str
    """Made once for this run and tracker: by it a sink finds again what earlier processes sent."""
    config: Mapping[str, Any]
    """Dotted key -> value."""
    folder: Path
    """For files of the tracker; it exists."""
    sent: int
    """Steps that earlier processes sent, as it is noted beside the run."""


class Sink:
    """Takes figures; every method but `step` may be left as it is."""

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        """Send the figures of step `number`, counted from 1."""
        raise NotImplementedError

    def measured(self, number: int, figures: Mapping[str, float]) -> None:
        """Send an accuracy of the whole run, measured before its first step or after so many; by
        default as of a step.
        """
        self.step(number, figures)

    def alarm(self, number: int, kind: str, text: str) -> None:
        """Tell of an alarm of step `number`, counted from 1: `kind` as `probes.proven`, and what is
        wrong in words. By default nothing.
        """

    def close(self) -> None:
        """Send what is left: it is over, for this process."""
