"""How work is run: coroutines from ordinary code, waiting for a quiet event loop, seconds of work,
and the garbage collector kept from what was there before.

Leaves out: what is run.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from comas.seams import StaleWeights
from comas.types import HostFailure, HostLost, Stopped, UserMistake

T = TypeVar("T")
QUIET = 8
"""Turns of the event loop without a new request that count as quiet: an answer passes through a few
callbacks (future, task, TaskGroup) before its game asks again.
"""
BEGINNING = 10.0
"""Seconds that a thread has to begin."""
PLAIN = (UserMistake, HostFailure, HostLost, StaleWeights)
"""Errors that are raised without the exception groups around them: each becomes one line."""


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from ordinary code, also where an event loop already runs
    (notebooks).

    Ctrl-C lets it end in order and is then a KeyboardInterrupt, in a notebook too.
    """
    work = _plainly(work)
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        return _beside(work)
    except (Stopped, asyncio.CancelledError):
        raise KeyboardInterrupt from None


def _beside(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread and a loop of its own."""
    outcome: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def body() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(body()))
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            outcome.set_exception(error)

    worker = threading.Thread(target=run, name="comas")
    try:
        worker.start()
        return outcome.result()
    except KeyboardInterrupt:  # it reaches the main thread only
        with suppress(TimeoutError):  # it came before the thread was there
            loop, task = started.result(BEGINNING)
            with suppress(RuntimeError):  # the work has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
            outcome.exception()  # waits for the end
            worker.join()
        raise


class Busy:
    """Counts the seconds in which at least one caller is inside (`with busy`)."""

    def __init__(self) -> None:
        self.inside = 0
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        if not self.inside:
            self._since = time.perf_counter()
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1
        if not self.inside:
            self.seconds += time.perf_counter() - self._since


async def quiet(count: Callable[[], int]) -> None:
    """Wait until QUIET turns of the event loop have left a count as it was."""
    unchanged = 0
    while unchanged < QUIET:
        before = count()
        await asyncio.sleep(0)
        unchanged = unchanged + 1 if count() == before else 0


class Gathered(Generic[T]):
    """Collects what comes until the event loop goes quiet, and hands it on together."""

    def __init__(self, hand_on: Callable[[list[T]], Awaitable[None]]) -> None:
        """`hand_on` is awaited; what comes meanwhile is gathered for the next time."""
        self._hand_on = hand_on
        self._things: list[T] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, thing: T) -> None:
        """Take one more; in the event loop."""
        self._things.append(thing)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        while self._things:
            await quiet(lambda: len(self._things))
            things = self._things
            self._things = []
            await self._hand_on(things)


async def _plainly(work: Coroutine[Any, Any, T]) -> T:
    """Await work, and raise what is `PLAIN` without the exception groups around it."""
    try:
        return await work
    except ExceptionGroup as group:
        plain: BaseException | None = group.subgroup(PLAIN)
        if plain is None:
            raise
        while isinstance(plain, ExceptionGroup):
            plain = plain.exceptions[0]
        raise plain from None


@contextmanager
def collected_apart() -> Iterator[None]:
    """Freeze the objects of imported libraries (`gc.freeze`) while a run goes on: scanning a
    million of them every few thousand turns took a third of what a turn costs besides its model.
    """
    if gc.get_freeze_count():  # somebody else's decision
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
