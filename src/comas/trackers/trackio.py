"""Trackio: a file of SQLite in its own folder (TRACKIO_DIR), or the Space or server that its
environment variables name.

It keeps what was logged when a run is finished, so that is done each time, and the run resumed.
Leaves out: what of the machine it could measure beside.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from comas.trackers.sink import PROJECT, Sink, Tracked

ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Environment variables with which it logs to another machine."""


def open(run: Tracked) -> Sink:
    """The run of this name and id in the project of TRACKIO_PROJECT, or `comas`."""
    return Logged(run, os.environ.get("TRACKIO_PROJECT", PROJECT))


class Logged(Sink):
    def __init__(self, run: Tracked, project: str) -> None:
        self.project = project
        self.name = f"{run.name}-{run.id[:8]}"
        self.config = dict(run.config)
        self.newest: tuple[str, int] | None = None
        self.run: Any = None

    def last(self, figure: str, step: int | None = None) -> int | None:
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import get_storage_mode

        if get_storage_mode() != "sqlite" or any(map(os.environ.get, ELSEWHERE)):
            return None
        values = SQLiteStorage.get_metric_values(self.project, self.name, figure, step)
        return max((value["step"] for value in values), default=-1)

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self._resume()
        self.run.log(dict(figures), step=number)
        self.newest = (next(iter(figures)), number)

    def alarm(self, number: int, kind: str, text: str) -> None:
        self._resume()
        with contextlib.redirect_stdout(io.StringIO()):  # where the run has told of it
            self.run.alert(kind, text, step=number)

    def flush(self) -> None:
        if self.run is None:
            return
        self.run.finish()
        self.run = None
        if self.newest is None:
            return
        figure, number = self.newest
        if self.last(figure, number) == -1:  # its own errors are warnings
            raise OSError(f"Trackio did not keep step {number}")

    def _resume(self) -> None:
        """Take the run up again, where it is finished."""
        import trackio

        if self.run is None:
            self.run = trackio.init(
                self.project,
                self.name,
                config=self.config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
