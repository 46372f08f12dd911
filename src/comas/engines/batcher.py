"""Single requests of all games -> batches for an engine that generates synchronously.

The batch is flushed when the event loop goes quiet: every live game waits for an answer. So it is a
function of the program, not of timing. Leaves out: engines that batch for themselves.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from comas.seams import Generation, Request, Weighing, always

QUIET = 8
"""Turns of the event loop without a new request that count as quiet: an answer passes through a few
callbacks (future, task, TaskGroup) before its game asks again.
"""


Asked = TypeVar("Asked")
"""A request, such as `seams.Request`."""
Answer = TypeVar("Answer")
"""What it comes to, such as `seams.Generation`."""


async def quiet(count: Callable[[], int], turns: int) -> None:
    """Wait until so many turns of the event loop have left a count as it was."""
    unchanged = 0
    while unchanged < turns:
        before = count()
        await asyncio.sleep(0)
        unchanged = unchanged + 1 if count() == before else 0


class Batcher(Generic[Asked, Answer]):
    """Collects requests and hands them to a function in one thread, in the order in which they
    came.
    """

    def __init__(
        self,
        generate: Callable[[Sequence[Asked], Callable[[], bool]], list[Answer]],
        worker: Executor | None = None,
    ) -> None:
        """`generate(requests, wanted)` -> one answer per request. `wanted()` returning False means
        that all callers were cancelled: stop early and return partial answers.

        `worker` has one thread; without one the batcher has its own.
        """
        self._generate = generate
        self._own = None if worker else ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.worker = worker or self._own
        """The one thread: another batcher of the same engine takes it as its own `worker`."""
        self._pending: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def __call__(self, request: Asked) -> Answer:
        """Wait for the answer to one request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._pending.append((request, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return await future

    def close(self) -> None:
        """End its own thread, where it has one."""
        if self._own is not None:
            self._own.shutdown(wait=True)

    async def _flush(self) -> None:
        while self._pending:
            await quiet(lambda: len(self._pending), QUIET)
            batch = [(r, f) for r, f in self._pending if not f.done()]
            self._pending = []
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        requests = [request for request, _ in batch]

        def wanted() -> bool:
            return not all(future.done() for _, future in batch)

        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self.worker, self._generate, requests, wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, done, strict=True):
            if not future.done():  # a game that was cancelled no longer waits
                future.set_result(answer)


class BatchedEngine(ABC):
    """An engine that answers whatever is asked for at the same time together, in one thread; its
    kinds define `facts`, `generate`, `weigh_all` and `publish`.
    """

    def __init__(self, worker: Executor | None) -> None:
        """`worker` is that of the plan."""
        self._sampling = Batcher(self.generate, worker)
        self._weighing = Batcher(self.weigh_all, self._sampling.worker)

    @abstractmethod
    def generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool] = always
    ) -> list[Generation]:
        """One generation per request, in their order. `wanted()` returning False means that all
        callers were cancelled: stop early and return partial generations.
        """

    @abstractmethod
    def weigh_all(
        self, weighings: Sequence[Weighing], wanted: Callable[[], bool] = always
    ) -> list[list[np.ndarray]]:
        """Per weighing and choice the log-probs of its tokens; nothing where nobody waits."""

    async def sample(self, request: Request) -> Generation:
        """One reply, decoded together with whatever else is asked for at the time."""
        return await self._sampling(request)

    async def weigh(self, weighing: Weighing) -> list[np.ndarray]:
        """Log-probs of given continuations, computed together with whatever else is weighed at the
        time.
        """
        return await self._weighing(weighing)

    def close(self) -> None:
        """End the thread, where it is the engine's own."""
        self._sampling.close()
