"""A team behind an endpoint that really listens, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from openai import OpenAI

from comas.evaluation.setups import asking_of
from comas.serve.endpoint import Endpoint, bound_to
from comas.serve.playing import Players, models_of
from comas.team.build import Team, members_of
from comas.testing import Scripted
from comas.types import HostLost
from tests.support import runs


@dataclass(frozen=True)
class Running:
    """An endpoint that can be asked."""

    url: str
    endpoint: Endpoint
    client: OpenAI
    answering: asyncio.Task[None]

    def post(self, body: Any, path: str = "/chat/completions", **headers: str) -> httpx.Response:
        """Send a body as it is, or as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {"Content-Type": "application/json", **headers}
        return httpx.post(self.url + path, content=data, headers=told, timeout=60)


@contextmanager
def running(
    team: Team,
    *,
    setups: Sequence[str] | None = None,
    at_once: int = 64,
    seconds: float = 600.0,
    key: str = "",
) -> Iterator[Running]:
    """The endpoint of a team while inside."""
    models = models_of(team, setups)
    players = Players(models, team.task, asking_of(team.config), team.config.seed, at_once)
    endpoint = Endpoint(players, key=key, seconds=seconds)
    loop = asyncio.new_event_loop()
    with bound_to("127.0.0.1", 0) as bound:
        answering = loop.create_task(endpoint.answer_until_cancelled(bound))
        thread = threading.Thread(target=_until_cancelled, args=(loop, answering))
        thread.start()
        try:
            url = endpoint.url(bound)
            with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
                yield Running(url, endpoint, client, answering)
        finally:
            with suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(answering.cancel)
            thread.join()


def _until_cancelled(loop: asyncio.AbstractEventLoop, answering: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError, HostLost):
        loop.run_until_complete(answering)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def scripted(script: Any, *pairs: str, host: Callable[..., Any] = Scripted) -> Team:
    """A team of the default config, or of these pairs, whose agents say what a script says."""
    resolved = runs.planned(list(pairs))
    hosts = {name: host(script, name=name) for name in resolved.config.hosts}
    return Team(resolved, hosts, members_of(resolved, hosts))
