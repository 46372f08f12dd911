"""Hosts in processes of their own on this machine: `hosts.<name>.where = "process"`.

A child with its own threads and its own GPU, reached through its stdin and stdout: nothing listens,
and when either side ends in whatever way, the other one notices. Leaves out: what the child does
(`transports.child`).
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from comas.children import ending, python_path, without_keys
from comas.hosts.line import Call, Ended, Heard
from comas.transports.frames import Cut, read_frame, write_frame

LAST_WORDS = 40
"""Lines of stderr that are kept."""


def start(call: Call, heard: Heard, ended: Ended) -> ProcessLine:
    """Start a child; it is given its shipment at once."""
    return ProcessLine(call, heard, ended)


class ProcessLine:
    """A child of ours and the threads that write to it and read from it."""

    def __init__(self, call: Call, heard: Heard, ended: Ended) -> None:
        self._heard = heard
        self._ended = ended
        self._closing = threading.Event()
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # a process group of its own: Ctrl-C is for us, who end it
        self._process = subprocess.Popen(
            command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(call),
            process_group=0 if os.name == "posix" else None,
        )
        self._outgoing.put(call.shipment)
        name = f"host-{call.host}"
        writer, self._listener, reader = self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work in (self._write, self._listen, self._read)
        ]
        writer.start()
        self._listener.start()
        reader.start()  # last: where the child has ended already, it waits for the listener

    @property
    def where(self) -> str:
        return f"process {self._process.pid}"

    def send(self, frame: bytes) -> None:
        self._outgoing.put(frame)

    def close(self, seconds: float) -> None:
        self._closing.set()
        self._outgoing.put(None)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # the child ends when it has read everything; where it is gone, whoever reads finds that out
        with suppress(OSError), pipe:
            while (frame := self._outgoing.get()) is not None:
                write_frame(pipe, frame)

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        told = ""
        with pipe:
            try:
                while (frame := read_frame(pipe)) is not None:
                    self._heard(frame)
            except Cut as error:
                told = f"{error}; "
        if self._closing.is_set():
            return
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = None
        self._listener.join(1.0)  # its last words are read
        self._ended(told + last_words(code, self._words))

    def _listen(self) -> None:
        """Keep the last lines of stderr; more of it is nobody's news."""
        pipe: IO[bytes] | None = self._process.stderr
        assert pipe is not None
        with pipe:
            for line in pipe:
                if text := line.decode("utf-8", "replace").strip():
                    self._words.append(text)


def command() -> list[str]:
    """How a child is started."""
    return [sys.executable, "-m", "comas.transports.child"]


def environment(call: Call) -> dict[str, str]:
    """The environment of a child: without keys, with its threads, with its GPU alone in sight."""
    variables = without_keys(os.environ, call.secrets)
    variables["PYTHONPATH"] = python_path()
    variables["OMP_NUM_THREADS"] = str(call.threads)
    if call.device.startswith("cuda:"):
        number = int(call.device.removeprefix("cuda:"))
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        in_sight = visible.split(",") if visible else []
        variables["CUDA_VISIBLE_DEVICES"] = in_sight[number] if in_sight else str(number)
    return variables


def last_words(code: int | None, words: Sequence[str]) -> str:
    """Why a child has ended, as far as it can be told."""
    said = f"; its last words: {words[-1][:300]}" if words else ""
    if code is None:
        return f"it closed its end{said}"
    how = ending(code)
    memory = ", as the system does where memory runs out" if how.endswith("SIGKILL") else ""
    return f"its process {how}{memory}{said}"
