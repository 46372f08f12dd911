"""What a request may cost, how many are played at once, and what is said to those that are refused.

Refusals have the form of OpenAI's errors, so that clients understand them. Leaves out: HTTP.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from comas.hosts.endpoint.ledger import BudgetSpent
from comas.types import HostFailure, HostLost, UserMistake

LATER = {"Retry-After": "1"}
"""Seconds after which a place may be free."""
QUEUE = 4
"""Discussions that may wait, times those that are played side by side."""
NEVER = {"X-Should-Retry": "false"}
"""What OpenAI's client reads: the same request will fail again."""


@dataclass(frozen=True)
class Limits:
    """Bounds of requests."""

    at_once: int = 64
    """Discussions that are played side by side; a request with `n` takes so many."""
    tokens: int = 65_536
    """That a team may generate for a request, all its replies together."""
    seconds: float = 600.0
    """For a request, from its headers to the last byte of the answer."""
    body: int = 1_000_000
    """Bytes of a request."""


class Refusal(Exception):
    """Why a request gets no answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class TooManyTokens(Exception):
    """A discussion that generated more tokens than a request may."""


class TooLong(UserMistake):
    """A question that leaves no room for a reply."""


def refusal_of(error: BaseException, limits: Limits) -> Refusal:
    """What to say of an error; of a bug its name, with the traceback on stderr."""
    if isinstance(error, Refusal):
        return error
    text = str(error)
    if isinstance(error, TooManyTokens):
        return Refusal(400, text, code="token_limit_exceeded")
    if isinstance(error, TimeoutError):
        late = (
            f"no answer within {limits.seconds:g} s, which is what a request may take (--seconds)"
        )
        return Refusal(504, late, code="timeout", headers=NEVER)
    if isinstance(error, BudgetSpent):
        return Refusal(429, text, code="insufficient_quota", headers=NEVER)
    if isinstance(error, TooLong):
        return Refusal(400, text, code="context_length_exceeded")
    if isinstance(error, UserMistake):
        return Refusal(400, text)
    if isinstance(error, HostFailure):
        return Refusal(502, text, code="host_failure")
    if isinstance(error, HostLost):
        return Refusal(503, f"{text}; the server ends", code="host_lost", headers=NEVER)
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    told = f"{type(error).__name__}: a bug; the server's stderr has its traceback"
    return Refusal(500, told, code="internal_error", headers=NEVER)


class Places:
    """How many discussions are played side by side, and how many wait for that."""

    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    def check(self, count: int) -> None:
        """A Refusal with 429 where so many more are too many even to wait."""
        if self.taken + self._waiting + count > self._limit * (1 + QUEUE):
            busy = (
                f"{self.taken} discussions are going on, and {self._waiting} wait: ask again in a"
                " second"
            )
            raise Refusal(429, busy, code="rate_limit_exceeded", headers=LATER)

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold places for one request, in the order in which requests come."""
        self.check(count)
        self._waiting += count
        try:
            async with self._turn:
                while self.taken + count > self._limit:
                    self._freed.clear()
                    await self._freed.wait()
                self.taken += count
        finally:
            self._waiting -= count
        try:
            yield
        finally:
            self.taken -= count
            self._freed.set()
