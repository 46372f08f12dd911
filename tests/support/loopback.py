"""A transport within this process, as somebody might write one of their own: the far end is a
thread with an event loop.
"""

from __future__ import annotations

import asyncio
import threading

from comas.hosts.far_end import Call, Ended, FarEnd, Heard


def start(call: Call, heard: Heard, ended: Ended) -> Loop:
    return Loop(call, heard)


class Loop:
    where = "loop here"

    def __init__(self, call: Call, heard: Heard) -> None:
        self.sent: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._end = FarEnd(heard)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._end.build, call.shipment)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        self._loop.call_soon_threadsafe(self._end.receive, frame)

    def close(self, seconds: float) -> None:
        self._end.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
