"""Resources that a sandbox holds, seen from outside through /proc: the processes below one, their
memory, the files in their folder.

Memory is what is resident or swapped out of each process, and what their folder holds, which lies
in memory as well. Leaves out: memory that belongs to no process, which the filter of system calls
keeps them from having (`filter`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Used:
    """Resources of one sandbox: threads, bytes, files and locks."""

    tasks: int
    """Threads of all processes."""
    memory: int
    """Bytes."""
    files: int
    locks: int
    """Locks of parts of files."""


def used(first: int, walled: bool) -> Used:
    """Measure what a process and all its descendants hold now.

    `walled`: the first process waits outside the walls for the second.
    """
    pids = descendants(first)
    tasks = sum(map(_tasks, pids))
    memory = sum(map(_memory, pids))
    room = files = 0
    if walled and len(pids) > 1:
        room, files = _folder(pids[1])
    return Used(tasks, memory + room, files, _locks(set(pids)))


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    pids = [pid]
    at = 0
    while at < len(pids):
        try:
            for task in os.listdir(f"/proc/{pids[at]}/task"):
                children = Path(f"/proc/{pids[at]}/task/{task}/children")
                pids += map(int, children.read_text(encoding="ascii").split())
        except OSError:
            pass  # it ended meanwhile
        at += 1
    return pids


def alive(pid: int) -> bool:
    """Whether it can still do something: a zombie, which waits for its parent to take notice,
    cannot.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _tasks(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _memory(pid: int) -> int:
    """Bytes of a process, in memory and swapped out."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    total = 0
    for line in status.splitlines():
        if line.startswith((b"VmRSS:", b"VmSwap:")):
            total += int(line.split()[1]) << 10
    return total


def _folder(pid: int) -> tuple[int, int]:
    """Bytes and files in the folder of a process behind walls; none where it may not be looked
    into.
    """
    try:
        room = os.statvfs(f"/proc/{pid}/root/work")
    except OSError:
        return 0, 0
    return (room.f_blocks - room.f_bfree) * room.f_frsize, room.f_files - room.f_ffree


def _locks(pids: set[int]) -> int:
    """Locks that processes hold on parts of files."""
    try:
        lines = Path("/proc/locks").read_bytes().splitlines()
    except OSError:
        return 0
    count = 0
    for line in lines:
        words = line.split()
        if len(words) > 4 and words[4].isdigit() and int(words[4]) in pids:
            count += 1
    return count
