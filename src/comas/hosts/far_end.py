"""The far end of a line: it owns a host, and does there what comes over the line; and what a
transport is (`comas.transports`): it carries frames of bytes, in order, both ways.

Frames that come in are lists of (number, verb, arguments); those that go out are `Out`. They are
pickled: both ends are ours, of one process tree or of one authenticated cluster. Leaves out: the
near end (`hosts.remote`), any one transport, how a host of a config is built (`team.elsewhere`),
checkpoints on disks that the two ends do not share.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from comas.sync import Gathered
from comas.types import Host, HostFailure, Learned, Meter, Method, Payoff

QUIET = 4
"""Turns of the event loop without another answer after which those at hand are sent."""
PULSE = 1.0
"""Seconds between two signs of life."""
METER = ("replies", "tokens", "rows_due", "rows_read", "rows_learnt")
Heard = Callable[[bytes], None]
"""Told of each frame that comes from the far end; from whatever thread."""
Ended = Callable[[str], None]
"""Told once when nothing more will come, with what is known of why; from whatever thread. Not told
after `close`.
"""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a transport is asked for: a far end that begins with this shipment."""

    host: str
    """Its name, for messages and for the names of processes."""
    shipment: bytes
    """The first frame: a pickled `Shipment`. The far end answers it when it has built its host."""
    device: str
    """`hosts.<name>.device`."""
    threads: int
    """Of torch, at the far end."""
    address: str | None = None
    """Of what the transport runs on, where that is a service with an address."""
    secrets: frozenset[str] = field(default_factory=frozenset[str])
    """Names of environment variables that the far end must not see."""


class Line(Protocol):
    """A line to a far end that has been started."""

    @property
    def where(self) -> str:
        """Whom it leads to, for messages: `process 4711`."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand a frame over for sending, and return at once; frames arrive whole, in order, once.

        Of a line that is broken, `Ended` is told; sending on it does nothing.
        """
        ...

    def close(self, seconds: float) -> None:
        """End the far end: it is asked to, and ended the hard way after `seconds`. Returns when it
        is gone.
        """
        ...


class Transport(Protocol):
    """A file of `comas.transports`, or one of the user's own.

    It may define `check(host)` as well, which raises a UserMistake where it cannot work here at
    all; it is called with `hosts.<name>` before anything is loaded.
    """

    def start(self, call: Call, heard: Heard, ended: Ended) -> Line:
        """Start a far end and return at once; UserMistake where it cannot be had."""
        ...


class Shipment(Protocol):
    """What travels to a far end first."""

    def build(self) -> tuple[Host, Method | None]:
        """Build a host there; also returns what it learns by, where it does."""
        ...


Answer = tuple[int, bool, Any]
"""The number of what was asked, whether it went well, and the value, or the error."""


class State(NamedTuple):
    """What the near end has to know without asking."""

    clock: Mapping[str, float]
    facts: Mapping[str, Any]
    meter: Mapping[str, int]
    """The counts of `METER`; empty where the host has no meter."""


class Out(NamedTuple):
    """A frame to the near end."""

    answers: Sequence[Answer] = ()
    state: State | None = None
    logged: tuple[int, str] | None = None
    """Level and text of what the far end logged."""


class FarEnd:
    """Does what comes over a line; `send` may be called from any thread."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._host: Host | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # an engine gives the answers of a batch in one turn of the loop
        self._answers = Gathered(self._answer, QUIET)
        self._over = threading.Event()
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def build(self, shipment: bytes) -> bool:
        """Build the host of a pickled `Shipment`, and answer with how the template of each policy
        writes calls of tools; returns whether there is a host.
        """
        try:
            shipped: Shipment = pickle.loads(shipment)
            self._host, _ = shipped.build()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the host
            self._tell([(0, False, portable(error))])
            return False
        policies = getattr(self._host, "versions", {})
        self._tell([(0, True, {policy: self._host.calls(policy) for policy in policies})])
        return True

    def forward_warnings(self) -> None:
        """Tell the near end of what is warned of in this process, which is the far end's own."""
        handler = logging.Handler(logging.WARNING)

        def emit(record: logging.LogRecord) -> None:
            logged = record.levelno, handler.format(record)
            self._send(pickle.dumps(Out(logged=logged), protocol=5))

        handler.emit = emit
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)

    def receive(self, frame: bytes) -> None:
        """Begin what a frame asks for; in the event loop."""
        loop = asyncio.get_running_loop()
        for number, verb, arguments in pickle.loads(frame):
            if verb != "cancel":
                self._tasks[number] = loop.create_task(self._do(number, verb, arguments))
            elif (task := self._tasks.get(number)) is not None:
                task.cancel()

    def close(self) -> None:
        """Give the host's threads and memory back."""
        self._over.set()
        if self._host is not None:
            self._host.close()

    async def _do(self, number: int, verb: str, arguments: Sequence[Any]) -> None:
        own_verbs = {"learn": self.learn, "sees": self.sees}
        try:
            answer = (
                number,
                True,
                await (own_verbs.get(verb) or getattr(self._host, verb))(*arguments),
            )
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # nobody waits for it
            answer = number, False, portable(error)  # the engine's own doing: somebody waits
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            answer = number, False, portable(error)
        finally:
            del self._tasks[number]
        self._answers.add(answer)

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], lr_scale: float) -> Learned:
        """Take one step by the method that was shipped."""
        assert self._host is not None
        return await self._host.learn(payoffs, lr_scale)

    async def sees(self, place: Path) -> bool:
        """Whether there is such a file or folder on this machine."""
        return await asyncio.to_thread(place.exists)

    async def _answer(self, answers: Sequence[Answer]) -> None:
        self._tell(answers)

    def _tell(self, answers: Sequence[Answer]) -> None:
        state = self._state()
        try:
            frame = pickle.dumps(Out(answers, state), protocol=5)
        except Exception:  # noqa: BLE001 - whatever a value of somebody's own engine does
            frame = pickle.dumps(Out([_sendable(answer) for answer in answers], state), protocol=5)
        self._send(frame)

    def _state(self) -> State | None:
        host = self._host
        if host is None:
            return None
        meter: Meter | None = host.meter
        counts = {} if meter is None else {name: getattr(meter, name) for name in METER}
        return State(dict(host.clock()), dict(host.facts()), counts)

    def _pulse(self) -> None:
        """Show that this process runs, also while it loads, learns or samples."""
        while not self._over.wait(PULSE):
            self._send(pickle.dumps(Out(state=self._state()), protocol=5))


def portable(error: BaseException) -> BaseException:
    """The error as it can travel; one that cannot, or is none of ordinary code, is told in words.
    Where it happened goes with it as a note.
    """
    where = "".join(traceback.format_exception(error)).rstrip()
    try:
        again = pickle.loads(pickle.dumps(error))
        # one that ends a process would end the near one, or be taken for Ctrl-C there
        ordinary = isinstance(error, Exception)
        survives = ordinary and type(again) is type(error) and str(again) == str(error)
    except Exception:  # noqa: BLE001 - whatever is against it, words can travel
        survives = False
    travelling = error if survives else HostFailure(f"{type(error).__name__}: {error}")
    travelling.__traceback__ = travelling.__cause__ = travelling.__context__ = None
    travelling.add_note(f"at the far end:\n{where}")
    return travelling


def _sendable(answer: Answer) -> Answer:
    """An answer, or why it cannot travel: who asked is not left waiting."""
    try:
        pickle.dumps(answer[2], protocol=5)
    except Exception as error:  # noqa: BLE001 - as above
        return answer[0], False, portable(error)
    return answer
