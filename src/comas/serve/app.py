"""The endpoint's HTTP: routes, who may ask, how much may come, and what happens when a client goes.

A request that is cut off by its client, or by its time, cancels its discussion; hosts skip what
nobody waits for. Leaves out: playing (`playing`), the socket (`listening`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from comas.serve.limits import NEVER, Places, Refusal, refusal_of
from comas.serve.playing import Answer, Heard, Players, Request, Usage
from comas.serve.protocol import WAITING, Wording, as_json, event, no_model, read_request
from comas.types import HostLost, Turn

T = TypeVar("T")
QUIET = 15.0
"""Seconds after which a stream in which nothing happens says that it is alive."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine in a Host header; a page elsewhere may have had its own name point here."""
HEALTH = "/health"
"""What may be asked by everybody: whether the server is there."""


@dataclass(frozen=True)
class Entrance:
    """Who may ask."""

    key: SecretStr | None
    """None: everybody on this machine."""
    names: frozenset[str] = LOOPBACK
    """By which this machine is asked, where there is no key."""

    def check(self, headers: Headers) -> None:
        """A Refusal for those who may not."""
        if self.key is None:
            host = headers.get("host", "")
            if self.names.isdisjoint({host, host.rpartition(":")[0]}):
                raise Refusal(403, f"this endpoint is asked as localhost, not as {host[:100]!r}")
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        expected = self.key.get_secret_value().encode()
        if kind.lower() != "bearer" or not secrets.compare_digest(given.encode(), expected):
            why = "a key is wanted: Authorization: Bearer KEY" if not given else "the key is wrong"
            bearer = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, why, code="invalid_api_key", headers=bearer)


class Guard:
    """Lets through only those who may ask."""

    def __init__(self, app: ASGIApp, entrance: Entrance) -> None:
        self._app = app
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] != HEALTH:
                self._entrance.check(Headers(scope=scope))
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Endpoint:
    """The routes."""

    def __init__(self, players: Players) -> None:
        self._players = players
        self._limits = players.limits
        self.places = Places(players.limits.at_once)
        self._lost: asyncio.Queue[HostLost] = asyncio.Queue()
        self._since = int(time.time())

    @property
    def models(self) -> list[str]:
        """Names of what can be asked."""
        return list(self._players.models)

    async def lost(self) -> HostLost:
        """Waits until a request has found a host gone, without which nobody can be answered."""
        return await self._lost.get()

    def _refusal(self, error: BaseException) -> Refusal:
        if isinstance(error, HostLost):
            self._lost.put_nowait(error)
        return refusal_of(error, self._limits)

    def app(self, entrance: Entrance) -> Starlette:
        """The application, for a server."""
        routes = [
            Route(HEALTH, _healthy),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        handlers: Any = {Refusal: _told, HTTPException: _told_of_route}
        guard = Middleware(Guard, entrance=entrance)
        app = Starlette(routes=routes, exception_handlers=handlers, middleware=[guard])
        app.router.redirect_slashes = False  # which would repeat a name that the client chose
        return app

    async def _models(self, _: Asked) -> Response:
        data = [self._record(name) for name in self._players.models]
        return answered({"object": "list", "data": data})

    async def _model(self, asked: Asked) -> Response:
        name = asked.path_params["name"]
        if name not in self._players.models:
            raise no_model(name, self._players.models)
        return answered(self._record(name))

    def _record(self, name: str) -> dict[str, Any]:
        model = self._players.models[name]
        return {
            "id": name,
            "object": "model",
            "created": self._since,
            "owned_by": "comas",
            "answered_by": model.answerers,
        }

    async def _chat(self, asked: Asked) -> Response | Streamed:
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                data = await body_of(asked, self._limits.body)
                request = read_request(data, self._players)
                if request.stream:
                    return Streamed(self, request, deadline)
                answers: list[Answer] = []
                playing = self._play(request, answers.append)
                usage = await while_connected(asked.receive, playing)
                return answered(Wording(request).whole(answers, usage))
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        except asyncio.CancelledError:
            return refused(Refusal(503, "the server ends", headers=NEVER))
        except Refusal:
            raise
        except Exception as error:
            raise self._refusal(error) from error

    async def _play(
        self, request: Request, told: Callable[[Answer], None], heard: Heard | None = None
    ) -> Usage:
        async with self.places.take(request.choices):
            return await self._players.play(request, told, heard)

    async def events(self, request: Request, deadline: float, send: Send) -> str:
        """Send the events of a stream but for the last ones, which are returned: its end, or the
        error that came on the way.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self._stream(request, send)
        except Exception as error:  # noqa: BLE001 - one request's trouble ends no other
            return event(self._refusal(error).body())

    async def _stream(self, request: Request, send: Send) -> str:
        wording = Wording(request)
        events: asyncio.Queue[str | None] = asyncio.Queue()

        def told(answer: Answer) -> None:
            events.put_nowait(wording.answer(answer))

        def heard(index: int, turn: Turn) -> None:
            if request.discussion:
                events.put_nowait(wording.turn(index, turn))

        playing = asyncio.ensure_future(self._play(request, told, heard))
        playing.add_done_callback(lambda _: events.put_nowait(None))
        try:
            await send(chunk(wording.opening()))
            while True:
                try:
                    async with asyncio.timeout(QUIET):
                        text = await events.get()
                except TimeoutError:
                    text = WAITING
                if text is None:
                    return wording.closing(playing.result())
                await send(chunk(text))
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)


class Streamed:
    """A reply in events; its places are free before the client can know that it has ended."""

    def __init__(self, endpoint: Endpoint, request: Request, deadline: float) -> None:
        self._endpoint = endpoint
        self._request = request
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._endpoint.places.check(self._request.choices)
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            last = await while_connected(
                receive, self._endpoint.events(self._request, self._deadline, send)
            )
        except ClientDisconnect:
            return
        await send({**chunk(last), "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await work, and cancel it where its client goes: ClientDisconnect."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left())
    both = (working, leaving)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def body_of(asked: Asked, most: int) -> bytes:
    """The bytes of a request; a Refusal where they are no JSON by their header, or too many."""
    kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page may send to another site without asking
        raise Refusal(415, f"Content-Type is {kind!r}: send application/json")
    length = asked.headers.get("content-length", "")
    data = bytearray()
    too_long = Refusal(413, f"a request has at most {most} bytes (--body)")
    if length.isdecimal() and int(length) > most:
        raise too_long
    async for part in asked.stream():
        data += part
        if len(data) > most:
            raise too_long
    return bytes(data)


def answered(record: dict[str, Any]) -> Response:
    """A reply of 200."""
    return Response(as_json(record), media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """The reply of a refusal."""
    body = as_json(refusal.body())
    kind = "application/json"
    return Response(body, refusal.status, dict(refusal.headers), media_type=kind)


async def _healthy(_: Asked) -> Response:
    return answered({"status": "ok"})


async def _told(_: Asked, refusal: Refusal) -> Response:
    return refused(refusal)


async def _told_of_route(asked: Asked, error: HTTPException) -> Response:
    what = f"{asked.method} {asked.url.path}: {error.detail}"
    there = "there are /v1/models and /v1/chat/completions"
    return refused(Refusal(error.status_code, f"{what}; {there}"))


def chunk(text: str) -> dict[str, Any]:
    """A part of a reply in events."""
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
