"""How a command of a cell is run: in a process of its own on this machine.

Another place (`--where`) is another function of the same form. Leaves out: which commands
(`studies.cells`), how many at once (`studies.running`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from comas.exit_codes import STOPPED

PATIENCE = 60.0
"""Seconds that a process has to end a step when it is asked to stop."""


class Place(Protocol):
    """Where commands of cells are run."""

    def run(self, arguments: Sequence[str], log: Path, threads: int | None) -> int:
        """Run `comas` with these arguments to its end, its output appended to `log`; returns the
        exit code, that of a process that was stopped or died included.
        """
        ...

    def stop(self) -> None:
        """Have all commands that are running end in order, and no other begin."""
        ...

    def kill(self) -> None:
        """End them at once."""
        ...


class Here:
    """Processes of this machine; they end when this one does, in whatever way."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, arguments: Sequence[str], log: Path, threads: int | None) -> int:
        command = [sys.executable, "-m", "comas.cli.cell", *arguments]
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        with log.open("ab") as output:
            with self._lock:
                if self._stopping:
                    return STOPPED
                # a process group of its own: Ctrl-C is for us, who ask it to stop
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    process_group=0,
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)
                if process.stdin is not None:
                    process.stdin.close()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.terminate()

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.kill()
