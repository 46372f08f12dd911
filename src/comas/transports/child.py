"""What runs in the child of `transports.process`: a far end on stdin and stdout.

It ends when its stdin does, even in the middle of a learning step: whoever asked is gone then, and
nothing is left behind. Leaves out: what is done (`hosts.far_end`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import IO

from comas.hosts.far_end import FarEnd
from comas.transports.frames import Cut, read_frame, write_frame

ENDING = 8.0
"""Seconds in which the host has to give its memory back."""


def main() -> int:
    """Serve until stdin ends; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    # what libraries print is no message
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    lock = threading.Lock()

    def send(frame: bytes) -> None:
        with lock:
            try:
                write_frame(outgoing, frame)
            except OSError:  # nobody is there any more
                os._exit(1)

    try:
        shipment = read_frame(incoming)
    except Cut:
        shipment = None
    if shipment is None:
        return 0
    end = FarEnd(send)
    end.forward_warnings()
    orphaned = threading.Event()
    waiting = _Frames(incoming, orphaned)
    if end.build(shipment):
        asyncio.run(waiting.serve(end))
    else:
        orphaned.wait()
    threading.Timer(ENDING, os._exit, [0]).start()
    end.close()
    os._exit(0)


class _Frames:
    """Frames as they come, read in a thread of their own from the start, so that the end of stdin
    is noticed whatever else is going on.
    """

    def __init__(self, stream: IO[bytes], over: threading.Event) -> None:
        self._stream = stream
        self._over = over
        self._early: list[bytes] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: FarEnd | None = None
        self._ended: asyncio.Event | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def serve(self, end: FarEnd) -> None:
        """Hand all frames to the far end until there are no more."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._end = end
            self._ended = asyncio.Event()
            for frame in self._early:
                end.receive(frame)
            if self._over.is_set():
                self._ended.set()
        await self._ended.wait()

    def _read(self) -> None:
        try:
            while (frame := read_frame(self._stream)) is not None:
                with self._lock:
                    if self._loop is None or self._end is None:
                        self._early.append(frame)
                    else:
                        self._loop.call_soon_threadsafe(self._end.receive, frame)
        except Cut:
            pass  # whoever sent it is gone
        # asked to end, or alone: what is going on is for nobody, however long it would take
        threading.Timer(ENDING, os._exit, [0]).start()
        with self._lock:
            self._over.set()
            if self._loop is not None and self._ended is not None:
                self._loop.call_soon_threadsafe(self._ended.set)


if __name__ == "__main__":
    sys.exit(main())
