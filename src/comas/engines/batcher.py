"""Pending asks of all games -> batches for a synchronous engine.

The batch is flushed when the event loop goes quiet: every live game waits for an answer. So it is a
function of the program, not of timing. Leaves out: asynchronous engines, which batch for
themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from comas.types import Generation, Request

QUIET = 8
"""Turns of the event loop without a new request that count as quiet: an answer passes through a few
callbacks (future, task, TaskGroup) before its game asks again.
"""


Generate = Callable[[Sequence[Request], Callable[[], bool]], list[Generation]]
"""Requests, and whether anybody still waits for them -> generations."""


class Batcher:
    """Collects requests and hands them to `generate` in one thread, in the order in which they
    came.
    """

    def __init__(self, generate: Generate, worker: ThreadPoolExecutor) -> None:
        self._generate = generate
        self._worker = worker
        self._pending: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Generation:
        """Wait for the generation of one request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._pending.append((request, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        while self._pending:
            quiet = 0
            seen = len(self._pending)
            while quiet < QUIET:
                await asyncio.sleep(0)
                quiet, seen = (
                    (quiet + 1, seen) if len(self._pending) == seen else (0, len(self._pending))
                )
            batch = [(r, f) for r, f in self._pending if not f.done()]
            self._pending = []
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[Generation]]]) -> None:
        requests = [request for request, _ in batch]
        wanted = lambda: not all(future.done() for _, future in batch)  # noqa: E731 - games that are cancelled do not wait
        try:
            done = await asyncio.get_running_loop().run_in_executor(
                self._worker, self._generate, requests, wanted
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), generation in zip(batch, done, strict=True):
            if not future.done():  # a game that was cancelled no longer waits
                future.set_result(generation)
