"""Hosts in processes of their own on this machine: `hosts.<name>.where = "process"`.

A child with its own threads and its own GPU, reached through two pipes that nobody else has:
nothing listens, and when either side ends in whatever way, the other one notices. The child runs
`main` of this file. Leaves out: what is done there (`hosts.far_end`).
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

from comas.children import ending, python_path, without_keys
from comas.hosts.far_end import Call, Ended, FarEnd, Heard
from comas.types import UserMistake

LAST_WORDS = 40
"""Lines of a child's output that are kept."""
ENDING = 8.0
"""Seconds in which a child's host has to give its memory back."""


def check(host: str) -> None:
    """An error where no pipes can be handed on to a child."""
    if os.name == "nt":
        raise UserMistake(
            f"{host}.where=process is for Linux and macOS: leave it out, or set {host}.where=ray"
        )


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
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        childs_incoming, self._outgoing = Pipe(duplex=False)
        self._incoming, childs_outgoing = Pipe(duplex=False)
        ends = (childs_incoming.fileno(), childs_outgoing.fileno())
        # a process group of its own: Ctrl-C is for us, who end it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "comas.transports.process", *map(str, ends)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(call),
            pass_fds=ends,
            process_group=0,
        )
        self.where = f"process {self._process.pid}"
        childs_incoming.close()
        childs_outgoing.close()
        self._frames.put(call.shipment)
        writer, self._listener, reader = self._threads = [
            threading.Thread(target=work, name=f"host-{call.host}", daemon=True)
            for work in (self._write, self._listen, self._read)
        ]
        writer.start()
        self._listener.start()
        reader.start()  # last: where the child has ended already, it waits for the listener

    def send(self, frame: bytes) -> None:
        self._frames.put(frame)

    def close(self, seconds: float) -> None:
        self._closing.set()
        self._frames.put(None)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)

    def _write(self) -> None:
        # the child ends when it has read everything; where it is gone, whoever reads finds that out
        with suppress(OSError), self._outgoing:
            while (frame := self._frames.get()) is not None:
                self._outgoing.send_bytes(frame)

    def _read(self) -> None:
        cut = ""
        with self._incoming:
            try:
                while True:
                    self._heard(self._incoming.recv_bytes())
            except EOFError:
                pass
            except OSError:
                cut = "its messages were cut; "
        if self._closing.is_set():
            return
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = None
        self._listener.join(1.0)  # its last words are read
        self._ended(cut + last_words(code, self._words))

    def _listen(self) -> None:
        """Keep the last lines that are printed there; more of it is nobody's news."""
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            for line in printed:
                if text := line.decode("utf-8", "replace").strip():
                    self._words.append(text)


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
    quoted = f"; its last words: {words[-1][:300]}" if words else ""
    if code is None:
        return f"it closed its end{quoted}"
    how = ending(code)
    memory = ", as the system does where memory runs out" if how.endswith("SIGKILL") else ""
    return f"its process {how}{memory}{quoted}"


def main(incoming: Connection, outgoing: Connection) -> None:
    """Be the child until its line ends, even in the middle of a learning step: whoever asked is
    gone then, and nothing is left behind.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides
    for pipe in (incoming, outgoing):
        os.set_inheritable(pipe.fileno(), False)
    lock = threading.Lock()
    loop = asyncio.new_event_loop()

    def send(frame: bytes) -> None:
        with lock:
            try:
                outgoing.send_bytes(frame)
            except OSError:  # nobody is there any more
                os._exit(1)

    def read() -> None:
        """In a thread of its own from the start, so that the end of the line is noticed whatever
        else is going on.
        """
        with suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(end.receive, incoming.recv_bytes())
        threading.Timer(ENDING, os._exit, [0]).start()
        loop.call_soon_threadsafe(loop.stop)

    shipment = incoming.recv_bytes()
    end = FarEnd(send)
    end.forward_warnings()
    threading.Thread(target=read, name="read", daemon=True).start()
    end.build(shipment)
    loop.run_forever()
    end.close()
    os._exit(0)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False))
