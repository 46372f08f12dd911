"""A server of ours that speaks OpenAI's chat protocol: it really listens, and does what servers do:
answers, faults, lies.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from comas.config.schema import HostConfig
from comas.evaluation.systems import team_of
from comas.hosts import api
from comas.hosts.api import GREETING, ApiHost
from comas.types import Ask, Sampling

KEY = "sk-very-secret-0123456789"


def said(text: str = "4", prompt: int = 7, tokens: int = 3, **choice: Any) -> dict[str, Any]:
    """A chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return {
        "choices": [
            {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}
        ],
        "usage": usage,
    }


def is_greeting(asked: dict[str, Any]) -> bool:
    """Whether a request is the one of one token that is made before any work."""
    return (
        asked["messages"] == list(GREETING)
        and asked.get("max_tokens", asked.get("max_completion_tokens")) == 1
    )


Act = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Does what the script says, one act per request, the last one from then on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Endpoint

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.gate:
            self.server.asked.append(
                {"path": self.path, "key": self.headers.get("Authorization"), **asked}
            )
            self.server.open += 1
            self.server.most = max(self.server.most, self.server.open)
            acts = self.server.acts
            act = acts.pop(0) if len(acts) > 1 else acts[0]
        try:
            act(self, asked)
        except OSError:  # the client has gone
            self.close_connection = True
        finally:
            with self.server.gate:
                self.server.open -= 1

    def reply(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.server.gate:
            self.server.open -= 1  # before the client knows
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        with self.server.gate:
            self.server.open += 1

    def log_message(self, *args: Any) -> None:
        pass


class Endpoint(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no news: nothing on stderr, which tests read."""

    def __init__(self, *acts: Act) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts: list[Act] = list(acts)
        self.asked: list[dict[str, Any]] = []
        self.gate = threading.Lock()
        self.open = self.most = 0
        self.scheme = "http"
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    @property
    def worked(self) -> list[dict[str, Any]]:
        """The requests that were made for work."""
        return [asked for asked in self.asked if not is_greeting(asked)]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/v1"


@pytest.fixture(name="serve")
def serving() -> Iterator[Callable[..., Endpoint]]:
    servers: list[Endpoint] = []

    def start(*acts: Act) -> Endpoint:
        servers.append(Endpoint(*acts))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses before further tries are short, but for those that a server asks for."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(api, "FIRST", 0.01)


@pytest.fixture(name="host_at")
def hosting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ApiHost]]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    in_haste(monkeypatch)
    hosts: list[ApiHost] = []

    def make(url: str, **config: Any) -> ApiHost:
        hosts.append(
            ApiHost(
                "judge",
                {"j": "big-model"},
                HostConfig(api=url, key_env="JUDGE_KEY", **config),
            )
        )
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def answers(body: Any = None, status: int = 200, **headers: str) -> Act:
    return lambda handler, asked: handler.reply(said() if body is None else body, status, **headers)


def hangs(handler: Handler, asked: dict[str, Any]) -> None:
    time.sleep(5.0)
    handler.close_connection = True


def breaks_off(handler: Handler, asked: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')
    handler.close_connection = True


async def ask(
    host: ApiHost, prompt: str = "2 + 2?", seed: int = 5, sampling: Sampling | None = None
) -> Any:
    sampling = sampling or Sampling(0.7)
    messages = [{"role": "user", "content": prompt}]
    return await host.ask(Ask("0/q/0/solution0", "j", messages, "solution", False, sampling, seed))


async def given_up(asking: Coroutine[Any, Any, Any], server: Endpoint) -> None:
    """Ask, and wait no more once the request has come to the server."""
    waiting = asyncio.create_task(asking)
    while not server.asked:
        await asyncio.sleep(0.01)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


MIXED = {
    "hosts": {"home": {"base": "tiny"}, "judge": {"base": "big-model", "key_env": "JUDGE_KEY"}},
    "agents": {
        "ann": {"roles": ["solution"]},
        "bob": {"roles": ["solution"]},
        "judge": {"host": "judge", "roles": ["evaluation", "scoring"], "frozen": False},
    },
    "steps": 2,
    "questions": 8,
    "test_questions": 8,
    "eval_every": 0,
    "threads": 1,
    "checkpoint_every": 1,
}


def judges(handler: Handler, asked: dict[str, Any]) -> None:
    prompt = asked["messages"][0]["content"]
    score = 3 if len(prompt) % 2 else 1  # so that there is something to learn
    handler.reply(
        said(f"<score> {score} </score>" if prompt.startswith("score ") else "It looks right.")
    )


@pytest.fixture(name="mixed")
def mixing(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Endpoint, dict[str, Any]]]:
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def make(*acts: Act, **judge: Any) -> tuple[Endpoint, dict[str, Any]]:
        server = serve(*acts, judges)
        hosts = {**MIXED["hosts"], "judge": {**MIXED["hosts"]["judge"], "api": server.url, **judge}}
        return server, {**MIXED, "hosts": hosts}

    return make


def records(run: Path) -> tuple[list[Any], list[Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    episodes = [
        json.loads(x)
        for p in sorted((run / "episodes").glob("*.jsonl"))
        for x in p.read_text().splitlines()
    ]
    return [json.loads(x) for x in lines], episodes


def no_secret(run: Path) -> None:
    assert not [p for p in run.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


@pytest.fixture(name="seed_model")
def seed_behind() -> Iterator[Act]:
    """Answers as the shipped tiny model does, so that what is said means something."""
    team = team_of(agents=1, threads=1)
    gate = ThreadPoolExecutor(1)  # a local host belongs to one loop at a time

    def act(handler: Handler, asked: dict[str, Any]) -> None:
        sampling = Sampling(asked["temperature"], 1.0, asked["max_tokens"])
        ask = Ask("t", "a0", asked["messages"], "solution", False, sampling, asked["seed"])
        asking = team.hosts["home"].ask(ask)
        reply = gate.submit(asyncio.run, asking).result()
        handler.reply(
            said(
                reply.text,
                reply.prompt_tokens,
                reply.tokens,
                finish_reason="stop" if reply.finished else "length",
            )
        )

    yield act
    gate.shutdown()
    team.close()
