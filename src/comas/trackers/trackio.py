"""Trackio: a file of SQLite in its own folder (TRACKIO_DIR), or the Space or server that its
environment variables name.

Leaves out: what of the machine it could measure beside.
"""

# where the package is not installed, pyright takes this file for it
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import os
from collections.abc import Mapping

from comas.trackers.sink import PROJECT, Sink, Tracked


def open(run: Tracked) -> Sink:
    """Return the run of this name and id in the project of TRACKIO_PROJECT, or `comas`."""
    return Logged(run, os.environ.get("TRACKIO_PROJECT", PROJECT))


class Logged(Sink):
    def __init__(self, run: Tracked, project: str) -> None:
        import trackio

        self.run = trackio.init(
            project,
            f"{run.name}-{run.id[:8]}",
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=number)

    def alarm(self, number: int, kind: str, text: str) -> None:
        self.run.alert(kind, text, step=number)

    def close(self) -> None:
        self.run.finish()
