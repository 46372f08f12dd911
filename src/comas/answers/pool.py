"""Processes that do work which may hang or blow up: asked one line of JSON at a time, killed at a
hard limit, kept warm.

Started as `python -m module` rather than by fork or by multiprocessing: a script without a main
guard is not run again, and threads of torch are not inherited. Any thread may ask. Leaves out:
hostile programs (those need a sandbox).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

from comas.children import python_path
from comas.machine import usable_cpus

START = 120.0
"""Seconds that a process may take to start: it imports, on a busy machine."""


class WorkerFailed(RuntimeError):
    """A request was not answered; says why. The process is gone, the next request gets a fresh one.

    `lasting`: the same request meets the same failure again, whatever else the machine does.
    `begun`: the process had written a blank before, by which it says that the first part of its
    work was done.
    """

    def __init__(self, why: str, lasting: bool = False, begun: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting
        self.begun = begun


class Workers:
    """At most `count` processes of `module`, started when they are needed; `limit`: seconds per
    request.
    """

    def __init__(self, module: str, limit: float, count: int | None = None) -> None:
        self.module = module
        self.limit = limit
        # the warm ones first
        self._idle: queue.LifoQueue[subprocess.Popen[str] | None] = queue.LifoQueue()
        for _ in range(count or usable_cpus()):
            self._idle.put(None)
        self._alive: set[subprocess.Popen[str]] = set()
        atexit.register(self.close)

    def ask(self, request: Any) -> Any:
        """Send a request to a free process and wait for its answer; both are JSON.

        Raises WorkerFailed.
        """
        worker = self._idle.get()
        reusable = None
        try:
            if worker is None or worker.poll() is not None:
                worker = self._start()
                self._exchange(worker, "", START)  # it says when it is ready
            line = self._exchange(worker, json.dumps(request) + "\n", self.limit)
            reply = json.loads(line)
            full = str(reply.get("error", "")).startswith("MemoryError")
            # what it had read before is none of the next request's business
            reusable = None if full else worker
        finally:
            if worker is not None and reusable is None:
                self._end(worker)
            self._idle.put(reusable)
        if "error" in reply:
            raise WorkerFailed(reply["error"], lasting=not full, begun=line.startswith(" "))
        return reply["answer"]

    def close(self) -> None:
        """End all processes; a later request starts new ones."""
        for worker in list(self._alive):
            self._end(worker)

    def _start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", self.module],  # -P: nothing of the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": python_path(),
                # one order of sets in every process, for what depends on it
                "PYTHONHASHSEED": "0",
            },
            text=True,
            encoding="ascii",
        )
        self._alive.add(worker)
        return worker

    def _exchange(self, worker: subprocess.Popen[str], line: str, limit: float) -> str:
        assert worker.stdin is not None
        assert worker.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            worker.kill()

        clock = threading.Timer(limit, end)
        clock.daemon = True
        clock.start()
        try:
            worker.stdin.write(line)
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except (OSError, ValueError) as error:  # it is gone, or was closed
            raise WorkerFailed(f"{self.module} broke off: {error}") from error
        finally:
            clock.cancel()
        begun = answer.startswith(" ")
        if late.is_set():
            raise WorkerFailed(f"{self.module} took longer than {limit:g} s", begun=begun)
        if not answer.endswith("\n") and worker.wait() == -getattr(signal, "SIGPROF", 0):
            raise WorkerFailed(
                f"{self.module} reached its limit of computing time", lasting=True, begun=begun
            )
        if not answer.endswith("\n"):
            raise WorkerFailed(
                f"{self.module} died (exit code {worker.wait()}); `python -m {self.module}`"
                " shows why",
                begun=begun,
            )
        return answer

    def _end(self, worker: subprocess.Popen[str]) -> None:
        self._alive.discard(worker)
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written can no longer be
                    pipe.close()
