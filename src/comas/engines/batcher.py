"""Single requests of all games -> batches for an engine that works synchronously, in one thread.

The batch is flushed when the event loop goes quiet: every live game waits for an answer. So it is a
function of the program, not of timing. Leaves out: what an engine computes, engines that batch for
themselves.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from comas.seams import (
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
    always,
)
from comas.sync import Gathered

LEAVE = 0.9
"""Fraction of live rows below which finished rows are dropped when no request waits (cheap: those
that stay move within their buffers).
"""
Asked = TypeVar("Asked")
"""A request, such as `seams.Request`."""
Answer = TypeVar("Answer")
"""Result of a request, such as `seams.Generation`."""
Wanted = Callable[[], bool]
"""False once all callers were cancelled."""
Places = Mapping[str, list[int]]
"""Policy -> places of its requests, for all policies of an engine."""


class Batcher(Generic[Asked, Answer]):
    """Collects requests and hands them to a function in one thread, in the order in which they
    came.
    """

    def __init__(
        self,
        generate: Callable[[Sequence[Asked], Wanted], list[Answer]],
        worker: Executor,
    ) -> None:
        """`generate(requests, wanted)` -> one answer per request. `wanted()` returning False means
        that all callers were cancelled: stop early and return partial answers.

        `worker` has one thread.
        """
        self._generate = generate
        self._worker = worker
        self._pending = Gathered(self._answer)

    async def __call__(self, request: Asked) -> Answer:
        """Wait for the answer to one request."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.add((request, future))
        return await future

    async def _answer(self, asked: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        batch = [(request, future) for request, future in asked if not future.done()]
        if not batch:
            return
        requests = [request for request, _ in batch]

        def wanted() -> bool:
            return not all(future.done() for _, future in batch)

        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._worker, self._generate, requests, wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, done, strict=True):
            if not future.done():  # a game that was cancelled no longer waits
                future.set_result(answer)


class BatchedEngine(ABC):
    """An engine that answers whatever is asked for at the same time together, in one thread, after
    looking whether it can; its kinds define `facts` and the three methods at the end.
    """

    draws_behind = 0
    """Tokens that are drawn behind what is weighed, which have to fit."""

    def __init__(self, plan: EnginePlan, policies: Iterable[str]) -> None:
        self.context = plan.context
        self.meter = plan.meter
        self.end_ids = np.array(sorted(plan.end_ids))
        self.policies = sorted(policies)
        self.versions = dict.fromkeys(self.policies, 0)
        self._worker = plan.worker or ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._ends_worker = plan.worker is None
        self._sampling = Batcher(self.generate, self._worker)
        self._weighing = Batcher(self.weigh_all, self._worker)

    async def sample(self, request: Request) -> Generation:
        """One reply, decoded together with whatever else is asked for at the time."""
        return await self._sampling(request)

    async def weigh(self, weighing: Weighing) -> list[np.ndarray]:
        """Log-probs of given continuations, computed together with whatever else is weighed at the
        time.
        """
        return await self._weighing(weighing)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], wanted: Wanted = always) -> list[Generation]:
        """One generation per request, in their order. `wanted()` returning False means that all
        callers were cancelled: stop early and return partial generations.
        """
        places = self._by_policy(requests)
        for request in requests:
            self._check_room(len(request.prompt_ids) + request.sampling.max_tokens, "its reply")
        done: dict[int, Generation] = {}
        for order, generations in self._generate(requests, places, wanted):
            done.update(zip(order, generations, strict=True))
        return [done[index] for index in range(len(requests))]

    @torch.no_grad()
    def weigh_all(
        self, weighings: Sequence[Weighing], wanted: Wanted = always
    ) -> list[list[np.ndarray]]:
        """Per weighing and choice the log-probs of its tokens; nothing where nobody waits."""
        places = self._by_policy(weighings)
        for weighing in weighings:
            lengths = list(map(len, weighing.choices))
            if not all(lengths):
                raise ValueError("a choice to be weighed has no token")
            longest = max(lengths, default=0) + self.draws_behind
            self._check_room(len(weighing.prompt_ids) + longest, "its longest choice")
        return self._weigh(weighings, places, wanted)

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Return once these weights are served; StaleWeights where that cannot be shown."""
        if policy not in self.policies:
            raise StaleWeights(
                f"policy {policy!r} is not at this engine, which has {', '.join(self.policies)}"
            )
        self._publish(policy, weights, version)
        self.versions[policy] = version

    def close(self) -> None:
        """End the thread where it is the engine's own."""
        if self._ends_worker:
            self._worker.shutdown(wait=True)

    def _by_policy(self, requests: Sequence[Request | Weighing]) -> Places:
        """Find the places of each policy's requests; KeyError for a policy that is not here."""
        places: dict[str, list[int]] = {policy: [] for policy in self.policies}
        unknown = sorted({request.policy for request in requests} - set(places))
        if unknown:
            raise KeyError(
                f"no policy {', '.join(unknown)} at this engine: it has {', '.join(places)}"
            )
        for index, request in enumerate(requests):
            places[request.policy].append(index)
        return places

    def _check_room(self, needed: int, what: str) -> None:
        """Refuse what does not fit: rows that have ended are held within the context, and so would
        be one that has not.
        """
        if needed > self.context:
            raise ValueError(
                f"a prompt and {what} need {needed} tokens, and the context has {self.context}"
            )

    @abstractmethod
    def _generate(
        self, requests: Sequence[Request], places: Places, wanted: Wanted
    ) -> Iterator[tuple[Sequence[int], Sequence[Generation]]]:
        """Places of some requests and their generations, until all have had their turn; `places`
        are those of each policy's requests.
        """

    @abstractmethod
    def _weigh(
        self, weighings: Sequence[Weighing], places: Places, wanted: Wanted
    ) -> list[list[np.ndarray]]:
        """`weigh_all`; `places` are those of each policy's weighings."""

    @abstractmethod
    def _publish(self, policy: str, weights: Weights, version: int) -> None:
        """`publish` of a policy that is here."""


def moved(buffer_NKSW: Tensor, rows: Sequence[int], used: int) -> Tensor:
    """Move these rows of keys or values to the front, the first `used` slots of each; a row that
    moves away from the front is lost.

    They move within their buffer: fresh memory would cost ten times the copying.
    """
    for index, row in enumerate(rows):
        if index != row:
            buffer_NKSW[index, :, :used] = buffer_NKSW[row, :, :used]
    return buffer_NKSW[: len(rows)]
