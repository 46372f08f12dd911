"""Where an endpoint listens, by whom it may be asked, and its life: from the team's loading to its
end.

On loopback unless a host is named, and then with a key; the key comes from the environment and is
taken out of it, so that no child has it. Leaves out: what is asked (`app`), and TLS (a proxy).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvicorn
from pydantic import SecretStr
from uvicorn.protocols.http.h11_impl import H11Protocol

from comas.config.policies import Resolved
from comas.evaluation.systems import greeted
from comas.evaluation.ways import asking_of
from comas.serve.app import LOOPBACK, Endpoint, Entrance
from comas.serve.limits import Limits
from comas.serve.playing import Players, check_kind, models_of
from comas.signals import listening
from comas.sync import collected_apart
from comas.team.build import Note, Team
from comas.types import UserMistake

KEY = "COMAS_SERVE_KEY"
"""The variable of the key, where no other is named."""
WAITING = 128
"""Connections that wait to be accepted."""
HEADERS = 10.0
"""Seconds in which a connection has to send the headers of a request, from its first byte."""
CONNECTIONS = 1000
"""The most that are open at once, where half of the files that this process may open are no less:
sockets are files.
"""
ENDING = 1.0
"""Seconds in which those who wait for an answer are told that the server ends."""


@dataclass(frozen=True)
class Served:
    """A team to be served."""

    resolved: Resolved
    weights: Path | None
    """The checkpoint of a run."""
    setups: Sequence[str] | None
    """None: all that can be played."""
    kind: str
    limits: Limits

    async def run(self, place: Place, entrance: Entrance, note: Note, ready: Ready) -> None:
        """Load the team and answer requests until it is cancelled; `ready(URL, models)` is told
        when it can be asked. Raises UserMistake where something cannot be served.
        """
        with place.bound() as bound:
            team = await greeted(self.resolved, note, self.weights)
            try:
                endpoint = self.endpoint(team)
                bound.listen(WAITING)
                ready(place.url(bound), endpoint.models)
                http = server(endpoint, entrance)
                await answer_until_cancelled(http, bound, endpoint)
            finally:
                team.close()

    def endpoint(self, team: Team) -> Endpoint:
        """The endpoint of a team that is loaded."""
        check_kind(team, self.kind)
        config = team.config
        models = models_of(team, self.setups)
        asking = asking_of(config)
        return Endpoint(Players(models, team.task, self.kind, asking, config.seed, self.limits))


Ready = Callable[[str, list[str]], None]


async def answer_until_cancelled(
    http: uvicorn.Server, bound: socket.socket, endpoint: Endpoint
) -> None:
    """Answer until cancelled, by Ctrl-C or SIGTERM; then nobody waits for an answer any more, so
    that hosts stop what they are at. Raises HostLost where a host is gone: those who asked are told
    first.
    """
    current = asyncio.current_task()
    assert current is not None
    asyncio.get_running_loop().set_exception_handler(_tell)
    serving = asyncio.ensure_future(http.serve(sockets=[bound]))
    losing = asyncio.ensure_future(endpoint.lost())
    try:
        with listening(lambda: False, current.cancel), collected_apart():
            await asyncio.wait((serving, losing), return_when=asyncio.FIRST_COMPLETED)
        if losing.done():
            http.should_exit = True
            await serving
            raise losing.result()
        await serving
    finally:
        losing.cancel()
        open_requests = list(http.server_state.tasks)
        for task in open_requests:
            task.cancel()
        if open_requests:
            await asyncio.wait(open_requests, timeout=ENDING)
        http.should_exit = True
        http.force_exit = True  # requests are over: nothing is waited for
        await serving


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Be quiet about connections for which no file can be opened: they are accepted later, and
    thousands of tracebacks a second help nobody.
    """
    error = context.get("exception")
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        loop.default_exception_handler(context)


class _Bounded(H11Protocol):
    """A connection that is closed where its headers do not come, or there are too many."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        self._late = self.loop.call_later(HEADERS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the headers are there
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(HEADERS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def most_connections() -> int:
    """How many connections may be open."""
    if os.name != "posix":
        return CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 2)


class _SignalsElsewhere(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server(endpoint: Endpoint, entrance: Entrance) -> uvicorn.Server:
    """The HTTP server; it writes no log, so that nothing that is asked, and no key, is in one."""
    config = uvicorn.Config(
        endpoint.app(entrance),
        http=_Bounded,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    return _SignalsElsewhere(config)


@dataclass(frozen=True)
class Place:
    """An address of this machine."""

    host: str
    port: int
    """0: a free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        _, address = self._resolved()
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback

    @contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """A socket that is bound, and does not listen yet."""
        family, address = self._resolved()
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            if os.name == "posix":  # elsewhere it would let two programs have one port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((address, self.port))
            except OSError as error:
                where = f"--host {self.host} --port {self.port}"
                raise UserMistake(f"{where}: {error.strerror}") from error
            yield bound

    def url(self, bound: socket.socket) -> str:
        """The base URL that clients are given."""
        return f"http://{self.name}:{bound.getsockname()[1]}/v1"

    @property
    def name(self) -> str:
        """The host as it stands in addresses."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def _resolved(self) -> tuple[socket.AddressFamily, str]:
        """The family and the number of the host."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise UserMistake(f"--host {self.host}: there is no such host ({error})") from error
        family, *_, address = found[0]
        return family, str(address[0])


def entrance_of(place: Place, variable: str | None) -> Entrance:
    """Who may ask: with the key in the environment, where there is one; without one only this
    machine.
    """
    key = os.environ.pop(variable or KEY, "").strip()
    if not key and variable is not None:
        raise UserMistake(f"--key-env {variable}: that environment variable is not set")
    if not key and not place.is_loopback:
        raise UserMistake(
            f"--host {place.host}: others than this machine can ask there, so that a key is wanted:"
            f" set the environment variable {KEY}, or name one with --key-env"
        )
    if key and not re.fullmatch(r"[!-~]+", key):
        raise UserMistake(
            f"what the environment variable {variable or KEY} holds cannot be a key: it has spaces"
            " or letters beyond ASCII"
        )
    return Entrance(SecretStr(key) if key else None, LOOPBACK | {place.name})
