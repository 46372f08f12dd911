"""How long a host's engine takes for replies of given lengths.

Leaves out: what follows from that (`hours`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np

from comas.game.agent import derive_seed
from comas.hosts.local_host import LocalHost
from comas.seams import Generation, Request
from comas.sync import run_sync
from comas.types import Sampling

PATIENCE = 60.0
"""Seconds after which a batch is cut; so long only what is too slow to be timed well takes."""
PIECES = 3
"""Equal pieces, of which the fastest counts: what else a machine does can only slow one down."""
SLOW = 10.0
"""Seconds of a first step after which nothing is learnt from again."""


class Stopwatch:
    """Asks a host for replies of given lengths, and takes the time."""

    def __init__(self, host: LocalHost, prompts: Sequence[np.ndarray], seed: int) -> None:
        self.host = host
        self.prompts = prompts
        self.seed = seed
        self.policies = list(host.versions)
        self._filled: dict[int, float] = {}

    def requests(self, count: int, length: int) -> list[Request]:
        """So many requests for replies of at most `length` tokens."""
        return [
            Request(
                self.policies[i % len(self.policies)],
                self.prompts[i % len(self.prompts)],
                Sampling(1.0, 1.0, length),
                derive_seed(self.seed, i),
            )
            for i in range(count)
        ]

    def replies(self, count: int, length: int) -> tuple[float, list[Generation], list[Request]]:
        """Seconds, and so many replies of at most `length` tokens with what was asked."""
        requests = self.requests(count, length)
        began = time.monotonic()
        replies = run_sync(self._sampled(requests))
        return time.monotonic() - began, replies, requests

    async def _sampled(self, requests: Sequence[Request]) -> list[Generation]:
        return await asyncio.gather(*map(self.host.engine.sample, requests))

    def listen(self, count: int, length: int) -> tuple[int, list[Generation], list[Request]]:
        """Replies of at most `length` tokens, or of as many as they reach within `PATIENCE`; how
        many, the replies, and what was asked.
        """
        before = self.host.meter.tokens
        requests = self.requests(count, length)
        try:
            return length, run_sync(self._patiently(requests)), requests
        except TimeoutError:
            reached = (self.host.meter.tokens - before) // count
        length = max(1, min(length - 1, reached))
        _, replies, requests = self.replies(count, length)
        return length, replies, requests

    async def _patiently(self, requests: Sequence[Request]) -> list[Generation]:
        async with asyncio.timeout(PATIENCE):
            return await self._sampled(requests)

    def prefill(self, count: int) -> tuple[float, int]:
        """Seconds of so many prompts with a token each, the fastest of some; and the tokens of
        these prompts.
        """
        if count not in self._filled:
            self._filled[count] = _fastest(lambda: self.replies(count, 1)[0])
        tokens = sum(len(request.prompt_ids) for request in self.requests(count, 1))
        return self._filled[count], tokens

    def per_token(self, count: int, length: int) -> float:
        """Seconds of one more token of a batch of so many rows."""
        _, made, _ = self.replies(count, length)
        more = max(len(reply.token_ids) for reply in made) - 1
        timed = _fastest(lambda: self.replies(count, length)[0])
        return max(1e-9, timed - self.prefill(count)[0]) / max(1, more)


def _fastest(piece: Callable[[], float]) -> float:
    """Seconds of the fastest of a few equal pieces; of one alone where that is slow."""
    first = piece()
    return first if first > SLOW else min(first, *(piece() for _ in range(PIECES - 1)))
