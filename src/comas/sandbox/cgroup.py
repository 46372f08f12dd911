"""Control groups of Linux, version 2: the kernel itself keeps all processes of a sandbox together
under their limits, and kills them at a word.

Used where this process may make groups that have both limits: as root of a whole machine, or where
systemd has handed a part of the tree to the user. Nothing of other groups is changed, so that
limits which nobody has handed down stay off. Leaves out: version 1, and what holds where there are
none (`jail` watches from outside in any case).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
PATIENCE = 5.0
"""Seconds until the last process of a killed group has to be gone."""
_numbers = itertools.count()


class Group:
    """A group of its own below `place`, empty as yet.

    Raises OSError where that is not allowed, or has no such limits.
    """

    def __init__(self, parent: Path, memory: int, processes: int) -> None:
        self.path = parent / f"comas-{os.getpid()}-{next(_numbers)}"
        os.mkdir(self.path)
        try:
            self._write("memory.max", memory)
            self._write("pids.max", processes)
            # all of it, not the one process that happens to be the largest
            self._write("memory.oom.group", 1)
            with contextlib.suppress(OSError):  # no swap, no such file
                self._write("memory.swap.max", 0)
        except OSError:
            self.end()
            raise

    def take(self, pids: Sequence[int]) -> None:
        """Move processes in; what they start from now on is in it as well. Raises OSError."""
        for pid in pids:
            self._write("cgroup.procs", pid)

    def kill(self) -> None:
        """All that is in it, at once: nothing can be started meanwhile."""
        # before Linux 5.14, where whoever watches from outside kills them one by one
        with contextlib.suppress(OSError):
            self._write("cgroup.kill", 1)

    def end(self) -> None:
        """Remove the control group once its last process is gone."""
        deadline = time.monotonic() + PATIENCE
        while self.path.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.001)
        # an empty folder that is left costs nothing; `place` removes it another time

    def _write(self, name: str, value: int) -> None:
        # which makes none: a folder without them is no group
        file = os.open(self.path / name, os.O_WRONLY)
        try:
            os.write(file, str(value).encode())
        finally:
            os.close(file)


@lru_cache
def place() -> Path | None:
    """Where groups can be made and processes moved into them, found by doing so; None where
    nowhere.
    """
    if not (ROOT / "cgroup.controllers").exists() or not OWN.exists():
        return None
    lines = OWN.read_text(encoding="utf-8", errors="replace").splitlines()
    own = [line[3:] for line in lines if line.startswith("0::")]
    mine = ROOT / own[0].strip("/") if own else ROOT
    # one that holds processes hands nothing down
    for folder in [mine, *([mine.parent] if mine != ROOT else [])]:
        _sweep(folder)
        try:
            _try(folder)
        except OSError:
            continue
        return folder
    return None


def _try(folder: Path) -> None:
    group = Group(folder, 64 << 20, 8)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as one:
        try:
            group.take([one.pid])
        finally:
            one.kill()
            one.wait()
            group.end()


def _sweep(folder: Path) -> None:
    """Groups of processes that are gone, killed before they could remove them."""
    for left in folder.glob("comas-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                os.rmdir(left)
