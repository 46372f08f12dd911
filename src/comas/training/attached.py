"""Trackers that a run is attached to: each follows its folder in a process of its own, which is
`comas track RUN TRACKER --follow`.

A tracker that is slow, hangs, prints or fails does so there; the run waits for none but a little at
its end. A process ends with the run, also where that is killed, since its stdin does. Leaves out:
what is sent (`trackers.reader`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from comas.config.builders import check_trackers
from comas.hooks import Hook, Hooks, Progress
from comas.program import command
from comas.storage.run import Run
from comas.team.build import Team

PATIENCE = 30.0
"""Seconds that trackers have at the end of a run."""


def attached(hooks: Hooks, trackers: Sequence[str]) -> Hooks:
    """These hooks and, where a run has trackers, one that attaches them; an error for a tracker
    that cannot be had.
    """
    names = list(dict.fromkeys(trackers))
    check_trackers(names)
    if not names:
        return hooks
    # first: what it tells at the end is told while the others still listen
    return Hooks([Trackers(names, hooks.note), *hooks.hooks])


@dataclass
class Follower:
    """The process of one tracker."""

    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    """Its stderr: a file without a name."""

    def reason(self) -> str:
        """The last line that it wrote, without its prefix."""
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        mistakes = [line for line in lines if line.startswith("error: ")]
        last = (mistakes or lines or ["it gave no reason"])[-1]
        return last.removeprefix("error: ").removeprefix(f"track {Path(self.name).name}: ")


class Trackers(Hook):
    """Starts a process for each tracker, tells once of one that fails, and ends them all."""

    def __init__(self, names: Sequence[str], note_to: Callable[[str], None]) -> None:
        self.names = names
        self.note_to = note_to
        self.folder = Path()
        self.followers: list[Follower] = []

    def begin(self, run: Run, team: Team, start: int) -> None:
        self.folder = run.path
        self.followers = [self._start(run.path, name) for name in self.names]

    def working(self, progress: Progress) -> None:
        for follower in list(self.followers):
            if follower.process.poll() is not None:
                self._drop(follower, f"failed ({follower.reason()})")

    def ended(self, result: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        for follower in self.followers:
            assert follower.process.stdin is not None
            follower.process.stdin.close()  # by which it knows
        try:
            for follower in list(self.followers):
                self._await(follower, deadline)
        finally:
            for follower in self.followers:  # after a second Ctrl-C
                follower.process.kill()

    def _start(self, folder: Path, name: str) -> Follower:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "comas", "track", folder.resolve(), name, "--follow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the run: it ends its trackers when it has ended
        )
        return Follower(name, process, errors)

    def _await(self, follower: Follower, deadline: float) -> None:
        """Let a tracker send what is left; one that takes too long is stopped."""
        try:
            code = follower.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            follower.process.kill()
            follower.process.wait()
            self._drop(follower, f"was not done {PATIENCE:.0f} s after the end of the run")
            return
        if code:
            self._drop(follower, f"failed ({follower.reason()})")
        else:
            self._forget(follower)

    def _drop(self, follower: Follower, what: str) -> None:
        """Tell of a tracker that is no more."""
        self._forget(follower)
        rest = f"{command()} track {shlex.quote(str(self.folder))} {follower.name}"
        self.note_to(f"track {follower.name} {what}; the run goes on; `{rest}` sends what is left")

    def _forget(self, follower: Follower) -> None:
        self.followers.remove(follower)
        assert follower.process.stdin is not None
        follower.process.stdin.close()
        follower.errors.close()
