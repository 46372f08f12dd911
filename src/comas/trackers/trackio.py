"""Trackio: a file of SQLite in its own folder (TRACKIO_DIR), or the Space or server that its
environment variables name; the run is that of this name and id in the project of TRACKIO_PROJECT.

Leaves out: when a figure is sent (`trackers.sink`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from comas.trackers.sink import PROJECT, Sink, Tracked


class Trackio(Sink):
    def __init__(self, run: Tracked) -> None:
        import trackio

        self.run = trackio.init(
            os.environ.get("TRACKIO_PROJECT", PROJECT),
            f"{run.name}-{run.id[:8]}",
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=number)

    def close(self) -> None:
        self.run.finish()


def open(run: Tracked) -> Sink:
    """Open Trackio for this run."""
    return Trackio(run)
