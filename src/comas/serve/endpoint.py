"""The endpoint's HTTP: routes, who may ask, how much may come, what happens when a client goes, and
the socket on which all that happens.

A request that is cut off by its client, or by its time, cancels its discussion; hosts skip what
nobody waits for. On loopback unless a host is named, and then with a key; the key comes from the
environment and is taken out of it, so that no child has it. Leaves out: playing (`playing`), TLS (a
proxy).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from comas.serve.playing import Players, ServedAnswer, TeamRequest
from comas.serve.protocol import Refusal, Wording, as_json, event, read_request, refusal_of
from comas.signals import listening
from comas.sync import collected_apart
from comas.types import HostLost, Turn, UserMistake

KEY = "COMAS_SERVE_KEY"
"""The variable of the key."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine in a Host header; a page elsewhere may have had its own name point here."""
BODY = 1_000_000
"""Bytes of a request, at most."""
QUEUE = 4
"""Discussions that may wait, times those that are played side by side."""
CONNECTIONS = 500
"""The most that are open at once, where half of the files that this process may open are no less:
sockets are files.
"""
HEADERS = 10.0
"""Seconds in which a connection has to send the headers of a request, from its first byte."""
QUIET = 15.0
"""Seconds after which a stream in which nothing happens says that it is alive."""
WAITING = ": the team is talking\n\n"
"""A comment, so that nobody in between takes a quiet connection for a dead one."""
ROUTES = ("GET /health", "GET /v1/models", "POST /v1/chat/completions")
LOOK = 0.25
"""Seconds after which it is looked whether a client is still there."""


def bound_to(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is a free one."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        raise UserMistake(f"--host {host} --port {port}: {error}") from error


def key_of(bound: socket.socket) -> str:
    """The key in the environment, or nothing, where only this machine can ask."""
    key = os.environ.pop(KEY, "").strip()
    address = bound.getsockname()[0].partition("%")[0]
    if not key and not ipaddress.ip_address(address).is_loopback:
        raise UserMistake(
            f"--host {address}: others than this machine can ask there, so that a key is wanted:"
            f" set the environment variable {KEY}"
        )
    if not re.fullmatch("[!-~]*", key):
        raise UserMistake(
            f"the environment variable {KEY} cannot be a key: it has spaces or letters beyond ASCII"
        )
    return key


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


class Endpoint:
    """The routes, and the server that has them."""

    def __init__(
        self, players: Players, host: str = "127.0.0.1", key: str = "", seconds: float = 600.0
    ) -> None:
        """`host` is the name by which this machine is asked, where there is no key; `seconds` are
        for a request, from its headers to the last byte of the answer.
        """
        self._players = players
        self.models = list(players.models)
        """Names of what can be asked."""
        self._key = key
        self._name = f"[{host}]" if ":" in host else host
        self._seconds = seconds
        self._lost: HostLost | None = None
        self.open = 0
        """Discussions that are played, or wait for that."""
        self._playing: set[asyncio.Future[tuple[list[ServedAnswer], list[Turn]]]] = set()
        """Requests that are answered now; what ends the server cancels them."""
        self._since = int(time.time())
        routes = [
            Route("/health", self._healthy),
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        app = Starlette(
            routes=routes, exception_handlers={Refusal: _refused, HTTPException: _not_there}
        )
        app.router.redirect_slashes = False  # which would repeat a name that the client chose
        # it writes no log, so that nothing that is asked, and no key, is in one
        config = uvicorn.Config(
            app,
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
        self._server: Any = uvicorn.Server(config)
        self._server.capture_signals = nullcontext  # signals are for whoever runs this

    def url(self, bound: socket.socket) -> str:
        """The base URL that clients are given."""
        return f"http://{self._name}:{bound.getsockname()[1]}/v1"

    async def answer_until_cancelled(self, bound: socket.socket) -> None:
        """Answer until cancelled, by Ctrl-C or SIGTERM; then those who wait for an answer are told
        so, and hosts stop what they are at. Raises HostLost where a host is gone: those who asked
        are told first.
        """
        current = asyncio.current_task()
        assert current is not None
        asyncio.get_running_loop().set_exception_handler(_tell)
        serving = asyncio.ensure_future(self._server.serve(sockets=[bound]))
        try:
            with listening(lambda: False, current.cancel), collected_apart():
                await asyncio.shield(serving)
        finally:
            self._end()
            await serving  # for as long as it takes to tell them, a second at most
        if self._lost is not None:
            raise self._lost

    def _end(self) -> None:
        """Begin to end the server; those who wait for an answer are told while they can be."""
        for playing in self._playing:
            playing.cancel()
        self._server.should_exit = True

    async def _healthy(self, _: Asked) -> Response:
        return _answered({"status": "ok"})

    async def _models(self, asked: Asked) -> Response:
        self._check(asked)
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._since,
                "owned_by": "comas",
                "answered_by": model.answerers,
            }
            for name, model in self._players.models.items()
        ]
        return _answered({"object": "list", "data": data})

    async def _chat(self, asked: Asked) -> Response:
        self._check(asked)
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                request = read_request(await _body_of(asked), self._players)
            if request.stream:
                self._check_places(request)
                events = self._events(request, deadline)
                quiet = {"Cache-Control": "no-store"}
                return StreamingResponse(events, media_type="text/event-stream", headers=quiet)
            with self._started(request, deadline) as playing:
                while not playing.done():
                    await asyncio.wait((playing,), timeout=LOOK)
                    if await asked.is_disconnected():
                        raise ClientDisconnect
                return _answered(Wording(request).whole(*_result(playing)))
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        except Exception as error:
            raise self._refusal(error) from error

    async def _events(self, request: TeamRequest, deadline: float) -> AsyncIterator[str]:
        """The events of a stream; the last one is its end, or the error that came on the way."""
        wording = Wording(request)
        try:
            with self._started(request, deadline) as playing:
                yield wording.opening()
                while not playing.done():
                    await asyncio.wait((playing,), timeout=QUIET)
                    if not playing.done():
                        yield WAITING
                yield wording.rest(*_result(playing))
        except Exception as error:  # noqa: BLE001 - one request's trouble ends no other
            yield event(self._refusal(error).body())

    @contextmanager
    def _started(
        self, request: TeamRequest, deadline: float
    ) -> Generator[asyncio.Future[tuple[list[ServedAnswer], list[Turn]]]]:
        """The discussions of a request, which end with the block."""
        playing = asyncio.ensure_future(self._play(request, deadline))
        self._playing.add(playing)
        try:
            yield playing
        finally:
            playing.cancel()
            self._playing.discard(playing)

    async def _play(
        self, request: TeamRequest, deadline: float
    ) -> tuple[list[ServedAnswer], list[Turn]]:
        self._check_places(request)
        self.open += request.choices
        try:
            async with asyncio.timeout_at(deadline):
                return await self._players.play(request)
        finally:
            self.open -= request.choices

    def _check(self, asked: Asked) -> None:
        """A Refusal for those who may not ask."""
        if not self._key:
            host = asked.headers.get("host", "")
            names = {*LOOPBACK, self._name}
            if names.isdisjoint({host, host.rpartition(":")[0]}):
                raise Refusal(403, f"this endpoint is asked as localhost, not as {host[:100]!r}")
            return
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        is_right = secrets.compare_digest(token.encode(), self._key.encode())
        if kind.lower() != "bearer" or not is_right:
            why = "a key is wanted: Authorization: Bearer KEY" if not token else "the key is wrong"
            raise Refusal(401, why, code="invalid_api_key")

    def _check_places(self, request: TeamRequest) -> None:
        """A Refusal with 429 where so many discussions are too many even to wait."""
        if self.open + request.choices > self._players.at_once * (1 + QUEUE):
            busy = f"{self.open} discussions are going on or wait: ask again in a second"
            raise Refusal(429, busy, code="rate_limit_exceeded")

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, TimeoutError):
            seconds = f"{self._seconds:g} s"
            error = TimeoutError(f"no answer within {seconds}, as a request may take (--seconds)")
        if isinstance(error, HostLost):  # without which nobody can be answered
            self._lost = error
            self._end()
        return refusal_of(error)


def _result(
    playing: asyncio.Future[tuple[list[ServedAnswer], list[Turn]]],
) -> tuple[list[ServedAnswer], list[Turn]]:
    """The answers of discussions that are over; a Refusal where the server's end cut them off."""
    if playing.cancelled():
        raise Refusal(503, "the server stops: ask again when it is back", code="server_stops")
    return playing.result()


async def _body_of(asked: Asked) -> bytes:
    """The bytes of a request; a Refusal where they are no JSON by their header, or too many."""
    kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page may send to another site without asking
        raise Refusal(415, f"Content-Type is {kind!r}: send application/json")
    data = bytearray()
    async for part in asked.stream():
        data += part
        if len(data) > BODY:
            raise Refusal(413, f"a request has at most {BODY} bytes")
    return bytes(data)


def _answered(record: dict[str, Any]) -> Response:
    return Response(as_json(record), media_type="application/json")


async def _not_there(asked: Asked, error: Exception) -> Response:
    """Answer a path or method that there is not, in the form that clients read."""
    assert isinstance(error, HTTPException)
    what = f"{asked.method} {asked.url.path}"[:100]
    message = f"there is no {what!r} here: there are {', '.join(ROUTES)}"
    response = await _refused(asked, Refusal(error.status_code, message, code="unknown_url"))
    response.headers.update(error.headers or {})  # the methods that a path has
    return response


async def _refused(_: Asked, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    body = as_json(refusal.body())
    return Response(body, refusal.status, refusal.headers(), media_type="application/json")
