"""A host elsewhere, as games and loops see it: the same `Host`, behind a line.

What several discussions ask at once leaves as one frame, when the event loop goes quiet: so a turn
costs microseconds, and what a frame holds follows from the program. Texts, payoffs and counts
travel; tokens and weights stay at the far end, which writes checkpoints itself, to a disk that both
share. Leaves out: the far end (`hosts.far_end`), how frames travel (`comas.transports`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any

from comas.hosts.far_end import Answer, Line, Out, State
from comas.sync import Gathered
from comas.types import (
    Account,
    Ask,
    Calls,
    Fit,
    HostLost,
    Learned,
    Meter,
    Method,
    Payoff,
    Reply,
    Sampling,
    UserMistake,
)

LOG = logging.getLogger("comas")
LOADING = 1800.0
"""Seconds in which a host has to be built: a large model comes from a slow disk."""
STARTING = 120.0
"""Seconds until the first sign of life, at least: a process begins to run."""
CLOSING = 10.0
"""Seconds in which a far end has to give its memory back."""


class RemoteHost:
    """A host whose weights, engine and learner are at the far end of a line.

    Made first; then `dial` gives it its line, and `ready` waits for the far end. One event loop at
    a time asks.
    """

    def __init__(
        self, name: str, method: Method | None, patience: float, device: str = "auto"
    ) -> None:
        """`method` is what it learns by; `patience` the seconds without a sign of life after which
        the far end counts as lost; `device` is how the near end calls its device.
        """
        self.name = name
        self.patience = patience
        self.device = device
        self.meter = Meter()
        self.learns = method is not None
        self._line: Line | None = None
        self._ready: Future[Mapping[str, Calls | None]] = Future()
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        """Number of what the loop asked -> what comes of it."""
        self._requests = Gathered(self._send)
        self._state = State({"sampling": 0.0, "learning": 0.0}, {}, {})
        self._heard_at = time.monotonic()
        self._heard = False
        self._lost: HostLost | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    # --- the line

    def dial(self, line: Line) -> None:
        """Take the line; `hear` and `end` are told of what comes over it."""
        self._line = line
        self._heard_at = time.monotonic()
        threading.Thread(target=self._watch, name=f"watch-{self.name}", daemon=True).start()

    def ready(self) -> None:
        """Wait until the far end has built its host; what went wrong there is raised here."""
        try:
            self._ready.result(LOADING)
        except TimeoutError:
            if self._ready.done():
                raise  # it is what went wrong there
            self.end(f"it had not loaded its models after {LOADING:.0f} seconds")
            raise self._gone() from None

    def hear(self, frame: bytes) -> None:
        """Take a frame of the far end; in any thread."""
        self._heard_at = time.monotonic()
        self._heard = True
        out: Out = pickle.loads(frame)
        if out.logged is not None:
            LOG.log(out.logged[0], "host %s: %s", self.name, out.logged[1])
        if out.state is not None:
            self._state = out.state
            vars(self.meter).update(out.state.meter)
        if out.answers and out.answers[0][0] == 0:
            self._built(*out.answers[0][1:])
        elif out.answers:
            self._in_loop(self._settle, out.answers)

    def end(self, words: str) -> None:
        """Take the end of the line; in any thread. Whoever waits is told, and who asks later."""
        with self._lock:
            if self._lost is not None or self._closed.is_set():
                return
            whom = "" if self._line is None else f" ({self._line.where})"
            self._lost = HostLost(f"host {self.name}{whom} is lost: {words}")
        self._built(False, self._gone())
        self._in_loop(self._fail)

    def _in_loop(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something in the loop that asked; of one that was closed nobody waits any more."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(work, *arguments)

    def _built(self, well: bool, value: Any) -> None:
        with suppress(InvalidStateError):  # it had been built, or was given up
            if well:
                self._ready.set_result(value)
            else:
                self._ready.set_exception(value)

    def _settle(self, answers: Sequence[Answer]) -> None:
        for number, well, value in answers:
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue
            if well:
                future.set_result(value)
            else:
                future.set_exception(value)

    def _fail(self) -> None:
        self._settle([(number, False, self._gone()) for number in self._waiting])

    def _gone(self) -> HostLost:
        """A fresh error for each that waits: one that is raised twice gathers two tracebacks."""
        return HostLost(str(self._lost))

    def _watch(self) -> None:
        """Give the far end up where it shows no sign of life."""
        every = min(1.0, self.patience / 4)
        while not self._closed.wait(every):
            silent = time.monotonic() - self._heard_at
            patience = self.patience if self._heard else max(self.patience, STARTING)
            if silent > patience and self._lost is None:
                self.end(f"no sign of life for {silent:.0f} seconds")
                assert self._line is not None
                self._line.close(0.0)

    async def _call(self, verb: str, *arguments: Any) -> Any:
        """Have the far end do something, together with whatever else is asked before the loop goes
        quiet.
        """
        if self._lost is not None:
            raise self._gone()
        assert self._line is not None
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._waiting = {}
            self._requests = Gathered(self._send)
        future: asyncio.Future[Any] = loop.create_future()
        number = next(self._numbers)
        self._waiting[number] = future
        self._requests.add((number, verb, arguments))
        if self._lost is not None:  # in the meantime, in another thread
            self._fail()
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None:
                self._line.send(pickle.dumps([(number, "cancel", ())], protocol=5))
            raise

    async def _send(self, requests: Sequence[tuple[int, str, Sequence[Any]]]) -> None:
        waited_for = [request for request in requests if request[0] in self._waiting]
        assert self._line is not None
        if waited_for:
            self._line.send(pickle.dumps(waited_for, protocol=5))

    # --- a host

    def calls(self, policy: str) -> Calls | None:
        """How the policy's chat template writes a call of a tool."""
        return self._ready.result(0).get(policy)

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether prompt and reply have room in the context."""
        return await self._call("fits", policy, messages, sampling)

    async def ask(self, ask: Ask) -> Reply:
        """Sample one reply; with `keep` its tokens are filed, at the far end."""
        return await self._call("ask", ask)

    async def tell(self, ask: Ask, text: str) -> Reply:
        """Return `text` as a reply; with `keep` its tokens are filed, at the far end."""
        return await self._call("tell", ask, text)

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """Return the log-probs of these choices; with `keep` the tokens of the one that is drawn
        are filed, at the far end.
        """
        return await self._call("weigh", ask, choices)

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], lr_scale: float) -> Learned:
        """Take one step per policy at `lr_scale` times its learning rate, at the far end."""
        return await self._call("learn", payoffs, lr_scale)

    async def save(self, path: Path) -> None:
        """Write weights, optimizer and counters below `path`, which has to be on a disk that the
        far end sees.
        """
        probe = path / f".{self.name}-{secrets.token_hex(8)}"
        probe.write_text(probe.name)
        try:
            await self._check_seen(probe, path)
        finally:
            probe.unlink()
        await self._call("save", path.resolve())

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        await self._check_seen(path, path)
        await self._call("load", path.resolve())

    async def _check_seen(self, place: Path, folder: Path) -> None:
        if not await self._call("sees", place.resolve()):
            raise UserMistake(
                f"host {self.name}: its machine does not see {folder.resolve()}: have the run"
                " (out) on a disk that both machines share"
            )

    def clock(self) -> Mapping[str, float]:
        """Seconds in which the engine, or the learner, worked, as last told."""
        return dict(self._state.clock)

    def facts(self) -> Mapping[str, Any]:
        """What the far end tells of itself, and where it is."""
        facts = dict(self._state.facts)
        if self.device.startswith("cuda:"):  # the far end has one GPU in sight, and counts from 0
            facts["device"] = self.device
        where = "" if self._line is None else self._line.where
        return {**facts, "where": where.split(" ")[0]}

    def account(self) -> Account:
        """Nothing is paid for."""
        return {}

    def close(self) -> None:
        """End the far end."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        if self._line is not None:
            self._line.close(CLOSING)
