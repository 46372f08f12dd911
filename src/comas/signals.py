"""Ctrl-C, SIGTERM and SIGHUP (a lost connection) as wishes: the first to stop soon, the second to
stop at once, the third to die.

Leaves out: what stopping means (`training.loop`).
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def listening(soon: Callable[[], bool], at_once: Callable[[], Any]) -> Generator[None]:
    """While inside: the first signal calls `soon`, the second `at_once`, in the running event loop;
    the third is Python's own.

    `soon` returns whether there is anything to wait for; if not, `at_once` is called too. Outside
    the main thread, where Python delivers no signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    count = 0

    def act(times: int) -> None:
        if times > 1 or not soon():
            at_once()

    def on_signal(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > 2:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(act, count)  # wakes the loop up, which a handler alone does not

    kinds = [signal.SIGINT, signal.SIGTERM]
    # nohup ignores it
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        kinds.append(signal.SIGHUP)
    before = {kind: signal.signal(kind, on_signal) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
