"""The far end of a line: it owns a host, and does there what comes over the line.

Frames that come in are lists of (number, verb, arguments); those that go out are `Out`. They are
pickled: both ends are ours, of one process tree or of one authenticated cluster. Leaves out: the
near end (`hosts.remote`), how frames travel (`comas.transports`), how a host of a config is built
(`team.elsewhere`), checkpoints on disks that the two ends do not share.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from comas.engines.batcher import quiet
from comas.types import Host, HostFailure, Learned, Meter, Method, Payoff

QUIET = 4
"""Turns of the event loop without another answer after which those at hand are sent."""
PULSE = 1.0
"""Seconds between two signs of life."""
METER = ("replies", "tokens", "rows_due", "rows_read", "rows_learnt")
OF_HOST = ("ask", "tell", "weigh", "fits", "save", "load")
"""Verbs of a line that are those of the host."""
OF_END = ("learn", "sees")
"""Those of `FarEnd`."""

Answer = tuple[int, bool, Any]
"""The number of what was asked, whether it went well, and the value, or the error."""


class State(NamedTuple):
    """What the near end has to know without asking; with every frame."""

    clock: Mapping[str, float]
    facts: Mapping[str, Any]
    meter: tuple[int, ...] | None
    """The counts of `METER`; None where the host has no meter."""


class Out(NamedTuple):
    """A frame to the near end."""

    answers: Sequence[Answer] = ()
    state: State | None = None
    logged: tuple[int, str] | None = None
    """Level and text of what the far end logged."""


class Shipment(Protocol):
    """What travels to a far end first."""

    def build(self) -> tuple[Host, Method | None]:
        """Build a host there; also returns what it learns by, where it does."""
        ...


class FarEnd:
    """Does what comes over a line; `send` may be called from any thread."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._host: Host | None = None
        self._method: Method | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: list[Answer] = []
        self._sender: asyncio.Task[None] | None = None
        self._over = threading.Event()
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def build(self, shipment: bytes) -> bool:
        """Build the host of a pickled `Shipment`, and answer with how the template of each policy
        writes calls of tools; returns whether there is a host.
        """
        try:
            shipped: Shipment = pickle.loads(shipment)
            self._host, self._method = shipped.build()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the host
            self._tell([(0, False, portable(error))])
            return False
        policies = getattr(self._host, "versions", {})
        calls = {policy: self._host.calls(policy) for policy in policies}
        self._tell([(0, True, calls)])
        return True

    def forward_warnings(self) -> None:
        """Tell the near end of what is warned of in this process, which is the far end's own."""
        logging.getLogger().addHandler(_Forward(self))
        logging.captureWarnings(True)

    def receive(self, frame: bytes) -> None:
        """Begin what a frame asks for; in the event loop."""
        loop = asyncio.get_running_loop()
        for number, verb, arguments in pickle.loads(frame):
            if verb == "cancel":
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()
                continue
            self._tasks[number] = loop.create_task(self._do(number, verb, arguments))

    def close(self) -> None:
        """Give the host's threads and memory back."""
        self._over.set()
        if self._host is not None:
            self._host.close()

    async def _do(self, number: int, verb: str, arguments: Sequence[Any]) -> None:
        assert verb in OF_HOST + OF_END
        try:
            value = await getattr(self if verb in OF_END else self._host, verb)(*arguments)
        except asyncio.CancelledError:
            return  # nobody waits for it
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            self._answer(number, False, portable(error))
        else:
            self._answer(number, True, value)
        finally:
            del self._tasks[number]

    def _answer(self, number: int, well: bool, value: Any) -> None:
        self._answers.append((number, well, value))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_when_quiet())

    async def _send_when_quiet(self) -> None:
        """Send all answers of a batch at once: an engine gives them in one turn of the loop."""
        await quiet(lambda: len(self._answers), QUIET)
        answers = self._answers
        self._answers = []
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
        counts = None if meter is None else tuple(getattr(meter, name) for name in METER)
        return State(dict(host.clock()), dict(host.facts()), counts)

    def _pulse(self) -> None:
        """Show that this process runs, also while it loads, learns or samples."""
        while not self._over.wait(PULSE):
            self._send(pickle.dumps(Out(state=self._state()), protocol=5))

    def log(self, level: int, text: str) -> None:
        """Tell the near end what was logged here."""
        self._send(pickle.dumps(Out(logged=(level, text)), protocol=5))

    # --- verbs

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], lr_scale: float) -> Learned:
        """Take one step by the method that was shipped."""
        assert self._host is not None
        assert self._method is not None, "the near end knows whether the host learns"
        return await self._host.learn(payoffs, replace(self._method, lr_scale=lr_scale))

    async def sees(self, place: Path) -> bool:
        """Whether there is such a file or folder on this machine."""
        return await asyncio.to_thread(place.exists)


class _Forward(logging.Handler):
    """Sends warnings of this process over the line."""

    def __init__(self, end: FarEnd) -> None:
        super().__init__(logging.WARNING)
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        self._end.log(record.levelno, self.format(record))


def portable(error: BaseException) -> BaseException:
    """The error as it can travel; one that cannot is told in words. Where it happened goes with it
    as a note.
    """
    where = "".join(traceback.format_exception(error)).rstrip()
    travelling = error
    try:
        again = pickle.loads(pickle.dumps(error))
        whole = type(again) is type(error) and str(again) == str(error)
    except Exception:  # noqa: BLE001 - whatever is against it, words can travel
        whole = False
    if not whole:
        travelling = HostFailure(f"{type(error).__name__}: {error}")
    travelling.__traceback__ = None
    travelling.__cause__ = None
    travelling.__context__ = None
    travelling.add_note(f"at the far end:\n{where}")
    return travelling


def _sendable(answer: Answer) -> Answer:
    """An answer, or why it cannot travel: who asked is not left waiting."""
    number, _, value = answer
    try:
        pickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001 - as above
        return number, False, portable(error)
    return answer
