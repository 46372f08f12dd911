"""A warm Python outside the walls, of which each sandbox is a fork: starting Python costs ten times
what building the walls does.

It is a process of its own, with a clean environment and none of our memory, and runs nothing of a
program itself: each fork goes behind its walls first. Linux only. Leaves out: the walls (`inside`),
walls that another command builds.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0
"""Seconds that a fork may take, on a busy machine."""


class Forks:
    """The command that `command` makes is started when a fork is first asked for, and again when it
    has died.

    Any thread may ask.
    """

    def __init__(self, command: Callable[[], list[str]], environment: dict[str, str]) -> None:
        self.command = command
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def born(
        self, settings: dict[str, Any], stdin: int, stdout: int
    ) -> tuple[int, subprocess.Popen[bytes]]:
        """The pid of a fork that talks over two file descriptors, and what it is a fork of.

        Raises OSError.
        """
        reply, source = self._ask(settings, [stdin, stdout])
        return reply["pid"], source

    def bury(self, pid: int) -> None:
        """Kill a fork, and let its pid go to others. Raises OSError."""
        self._ask({"bury": pid}, [])

    def close(self) -> None:
        """End it, and with it every fork that is left; the next request starts another."""
        with self._lock:
            self._end()

    def _ask(
        self, request: dict[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
        message = json.dumps(request).encode()
        with self._lock:
            for again in (True, False):  # it may have been killed since
                try:
                    return self._exchange(message, fds)
                except OSError:
                    self._end()
                    if not again:
                        raise
        raise AssertionError

    def _exchange(
        self, message: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
        source = self.process
        if source is None or self._owner != os.getpid():  # one that our parent asks is not ours
            source = self._start()
        socket.send_fds(self._line, [message], fds)
        reply = self._line.recv(1 << 16)
        if not reply:
            raise ConnectionResetError("the process that forks sandboxes ended")
        return json.loads(reply), source

    def _start(self) -> subprocess.Popen[bytes]:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(PATIENCE)
        with theirs:
            self.process = started = subprocess.Popen(
                self.command(),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                cwd="/",
                start_new_session=True,
            )
        self._owner = os.getpid()
        return started

    def _end(self) -> None:
        if self.process is not None and self._owner == os.getpid():
            self._line.close()
            self.process.kill()
            self.process.wait()
        self.process = None
