"""What an endpoint does not do is said in OpenAI's form, with the parameter's name; it stays up."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from comas.hosts.ledger import BudgetSpent
from comas.serve import endpoint
from comas.testing import Scripted
from comas.types import HostFailure, HostLost, NoRoom, Refused, Reply, UserMistake
from tests.support.serving import Running, running, scripted

HELLO = [{"role": "user", "content": "10 5 6 9 -> 24"}]
CHAT = {"model": "single", "messages": HELLO}
SAID = "10 + 5 = 15 + 9 = 24"
KEY = "sk-of-this-test-0123456789"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(scripted(lambda *_: SAID)) as endpoint:
        yield endpoint


def error_of(reply: httpx.Response) -> dict[str, Any]:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("logprobs", True, "logprobs: is not supported here, and is never ignored: leave it out"),
        ("top_logprobs", 3, "not supported"),
        ("tools", [{"type": "function"}], "not supported"),
        ("tool_choice", "required", "not supported"),
        ("functions", [{"name": "f"}], "not supported"),
        ("response_format", {"type": "json_object"}, "not supported"),
        ("logit_bias", {"5": 1}, "not supported"),
        ("frequency_penalty", 0.5, "not supported"),
        ("presence_penalty", True, "not supported"),
        ("reasoning_effort", "low", "not supported"),
        ("modalities", ["audio"], "not supported"),
        (
            "stream_options",
            {"include_usage": "x"},
            "stream_options.include_usage: true or false is wanted",
        ),
        ("max_toks", 5, "not supported"),
        ("prompt", "x", "not supported"),
        ("n", 0, "n: a number of at least 1 is wanted"),
        ("n", "2", "n: a whole number is wanted"),
        ("n", True, "n: a whole number is wanted"),
        ("n", 65, "65 answers are wanted, and 64 are the most"),
        ("seed", 1.5, "a whole number is wanted"),
        ("seed", 10**400, "number"),
        ("temperature", -1, "at least 0"),
        ("temperature", 2.5, "at most 2"),
        ("temperature", "hot", "temperature: a number is wanted"),
        ("temperature", 5e-324, "wanted is 0, or at least 0.0001"),
        ("temperature", 9e-5, "wanted is 0, or at least 0.0001"),
        ("top_p", 0, "above 0"),
        ("max_tokens", 0, "at least 1"),
        ("top_k", 40, "not supported"),
        ("mirostat", 2, "not supported"),
        ("xtc_probability", 0.5, "not supported"),
        ("encoder_repetition_penalty", 1.2, "not supported"),
        ("repetition_penalty", 1.1, "not supported"),
        ("stop", "", "stop: a text of at least 1 character"),
        ("stop", [""], "stop.0: a text of at least 1 character"),
        ("stop", 5, "stop: a "),
        ("stream", "yes", "true or false"),
        ("discussion", 1, "true or false"),
        ("model", "gpt-4", "there is no model 'gpt-4': there are single, single/a0, single/a1"),
        ("model", "./mine.py", "there is no model './mine.py'"),
        ("model", "vote:votes=1000", "there is no model"),
        ("messages", [], "a list of at least 1"),
        ("messages", "hello", "messages: a list is wanted"),
        ("messages", [{"role": "assistant", "content": "so"}], "has to be the user's"),
        ("messages", [{"role": "user", "content": " \n"}], "has to be the user's"),
    ],
)
def test_a_parameter_is_refused_by_its_name(
    served: Running, name: str, value: Any, said: str
) -> None:
    reply = served.post({**CHAT, name: value})
    error = error_of(reply)
    assert reply.status_code == (404 if name == "model" else 400)
    assert error["param"] == name
    assert said in error["message"]
    assert not re.search(r"Input should|List should|String should|constr|\[", error["message"])
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "function", "content": "4"}, "messages.0.role"),
        ({"role": "tool", "content": "4"}, "messages.0.role"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"content": "4"}, "messages.0.role"),
        ({"role": "user", "content": "x", "audio": {"id": "1"}}, "messages.0.audio"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages.0.content.0.type: wanted is 'text'",
        ),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages.0.tool_calls"),
    ],
)
def test_what_no_text_can_carry_is_refused(served: Running, message: Any, place: str) -> None:
    reply = served.post({**CHAT, "messages": [message, *HELLO]})
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["param"] == "messages"
    assert error["message"].startswith(place)


def test_what_asks_for_nothing_is_taken(served: Running) -> None:
    nothing: dict[str, Any] = {
        "logprobs": False,
        "tools": [],
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "stop": None,
        "max_tokens": None,
        "user": "somebody",
        "store": False,
        "parallel_tool_calls": True,
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 1.0,
        "best_of": 1,
        "skip_special_tokens": True,
        "encoder_repetition_penalty": 1,
        "modalities": ["text"],
        "metadata": {"session": "7"},
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "xtc_probability": 0,
        "xtc_threshold": 0.1,
    }
    assert served.post({**CHAT, **nothing}).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body: no JSON: "),
        (b"[1]", "the body: an object is wanted"),
        (b'{"model": "\xff"}', "no JSON: invalid unicode"),
        (b'{"model": "\\ud800"}', "no JSON"),
        (b"[" * 100_000, "no JSON: recursion limit exceeded"),
        (b"{}", "model: is missing"),
        (b'{"model": "single"}', "messages: is missing"),
    ],
)
def test_bodies_that_are_no_requests(served: Running, body: bytes, said: str) -> None:
    reply = served.post(body)
    assert reply.status_code == 400
    assert said in error_of(reply)["message"]


def test_a_page_elsewhere_cannot_ask(served: Running) -> None:
    plain = served.post(CHAT, **{"Content-Type": "text/plain"})
    assert (plain.status_code, "send application/json" in plain.text) == (415, True)
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        reply = served.post(CHAT, Host=host)
        assert reply.status_code in (400, 403), host
    port = served.url.split(":")[2].partition("/")[0]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        assert served.post(CHAT, Host=host).status_code == 200
    assert "access-control-allow-origin" not in served.post(CHAT).headers


def test_health_is_asked_without_a_key_and_says_nothing_else() -> None:
    with running(scripted(lambda *_: SAID), key=KEY) as served:
        root = served.url.removesuffix("/v1")
        reply = httpx.get(f"{root}/health", headers={"Host": "probe.example"})
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        assert httpx.get(f"{root}/health/../v1/models").status_code == 401
        assert httpx.post(f"{root}/health").status_code == 405


@pytest.mark.parametrize("path", ["/chat/completions/", "/models/"])
def test_nobody_is_sent_to_a_name_that_he_chose(served: Running, path: str) -> None:
    for reply in (httpx.get(served.url + path), served.post(CHAT, path)):
        assert reply.status_code in (404, 405)
        assert "location" not in reply.headers


def test_other_paths_and_verbs(served: Running) -> None:
    for path, status in (("/embeddings", 404), ("/completions", 404), ("/chat/completions", 405)):
        reply = httpx.get(served.url + path)
        assert reply.status_code == status
        assert "POST /v1/chat/completions" in error_of(reply)["message"]
    assert reply.headers["allow"] == "POST"
    with pytest.raises(openai.NotFoundError, match=r"'POST /v1/completions'"):
        served.client.completions.create(model="single", prompt="x")


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_when_the_server_stops_is_told_so(stream: bool) -> None:
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with ThreadPoolExecutor(1) as threads:
        with running(team) as served:
            reply = threads.submit(served.post, {**CHAT, "stream": stream})
            until(lambda: host.waiting == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        told = reply.result()
        if stream:
            assert '"code": "server_stops"' in told.text
        else:
            assert told.status_code == 503
            assert error_of(told)["code"] == "server_stops"
            assert told.headers["x-should-retry"] == "true"
    assert host.cancelled == 1


def test_a_key_is_asked_for_and_never_told(capfd: pytest.CaptureFixture[str]) -> None:
    team = scripted(lambda *_: SAID)
    with running(team, key=KEY) as served:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            for reply in (served.post(CHAT, **header), httpx.get(f"{served.url}/models")):
                assert reply.status_code == 401
                assert error_of(reply)["code"] == "invalid_api_key"
                assert KEY not in reply.text
        odd = {"Authorization": "Bearer \xe9".encode("latin-1")}
        assert httpx.get(f"{served.url}/models", headers=odd).status_code == 401
        with pytest.raises(openai.AuthenticationError):
            served.client.models.list()
        # behind a key the name does not matter: a proxy may have its own
        reply = served.post(CHAT, Authorization=f"Bearer {KEY}", Host="team.example")
        assert reply.status_code == 200
        with OpenAI(base_url=served.url, api_key=KEY, max_retries=0) as client:
            assert client.models.list().data
    said = capfd.readouterr()
    assert KEY not in said.out + said.err


def test_too_long_a_body(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comas.serve.endpoint.BODY", 300)
    assert served.post(CHAT).status_code == 200
    long = json.dumps({**CHAT, "user": "x" * 300}).encode()
    reply = served.post(long)
    assert (reply.status_code, "at most 300 bytes" in reply.text) == (413, True)
    # without a length: it is counted as it comes
    told = {"Content-Type": "application/json"}
    pieces = iter([long[:200], long[200:]])
    reply = httpx.post(f"{served.url}/chat/completions", content=pieces, headers=told)
    assert reply.status_code == 413
    assert served.post(CHAT).status_code == 200


class Slow(Scripted):
    """Waits until it is let go, and counts who has been cancelled."""

    def __init__(self, script: Any, name: str) -> None:
        super().__init__(script, name)
        self.go = threading.Event()
        self.waiting = 0
        self.cancelled = 0

    async def ask(self, ask: Any) -> Any:
        self.waiting += 1
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return await super().ask(ask)


def until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_too_long_a_discussion() -> None:
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team, seconds=1.0) as served:
        reply = served.post(CHAT)
        assert reply.status_code == 504
        assert "no answer within 1 s" in error_of(reply)["message"]
        assert reply.headers["x-should-retry"] == "false"
        with pytest.raises(openai.APIError, match="no answer within"):
            list(served.client.chat.completions.create(**CHAT, stream=True))
        until(lambda: host.waiting == 0)
        host.go.set()
        assert served.post(CHAT).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_beyond_its_places_requests_wait_and_beyond_those_it_says_so(stream: bool) -> None:
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team, at_once=3) as served, ThreadPoolExecutor(8) as threads:
        two = {**CHAT, "n": 2, "stream": stream}
        replies = [threads.submit(served.post, two) for _ in range(7)]
        until(lambda: served.endpoint.open == 14)
        assert host.waiting == 3
        refused = served.post(two)
        assert refused.status_code == 429
        assert refused.headers["x-should-retry"] == "true"
        assert error_of(refused)["type"] == "rate_limit_error"
        with pytest.raises(openai.RateLimitError):
            served.client.chat.completions.create(**two)
        host.go.set()
        assert {reply.result().status_code for reply in replies} == {200}
        assert served.post(two).status_code == 200
        assert served.endpoint.open == 0


def test_who_waits_is_bound_by_his_time_and_may_go() -> None:
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team, at_once=1, seconds=0.5) as served:
        with ThreadPoolExecutor(3) as threads:
            replies = [threads.submit(served.post, CHAT) for _ in range(3)]
            assert {reply.result().status_code for reply in replies} == {504}
        until(lambda: served.endpoint.open == 0)
        host.go.set()
        assert served.post(CHAT).status_code == 200


def test_a_quiet_stream_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comas.serve.endpoint.QUIET", 0.02)
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team) as served:
        told = {"Content-Type": "application/json"}
        asked = json.dumps({**CHAT, "stream": True}).encode()
        address = f"{served.url}/chat/completions"
        with httpx.stream("POST", address, content=asked, headers=told, timeout=60) as reply:
            lines = reply.iter_lines()
            until(lambda: next(lines) == ": the team is talking")
            host.go.set()
            assert list(lines)[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_discussion(stream: bool) -> None:
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team) as served:
        body = json.dumps({**CHAT, "model": "vote", "stream": stream}).encode()
        port = int(served.url.split(":")[2].partition("/")[0])
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + body)
            until(lambda: host.waiting == 8)
        until(lambda: host.cancelled == 8)
        until(lambda: served.endpoint.open == 0)
        host.go.set()
        assert served.post(CHAT).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code", "said"),
    [
        (HostFailure("the machine is down"), 502, "host_failure", "the machine is down"),
        (UserMistake("no such thing: write another"), 400, None, "no such thing"),
        (Refused("no such temperature"), 400, None, "no such temperature"),
        (NoRoom("too long"), 400, "context_length_exceeded", "too long"),
        (BudgetSpent("hosts.x.budget_tokens"), 429, "insufficient_quota", "budget_tokens"),
        (KeyError("a bug"), 500, "internal_error", "KeyError"),
    ],
)
@pytest.mark.parametrize("model", ["single", "vote"])
def test_a_team_that_fails_is_an_error_and_the_server_stays_up(
    error: Exception,
    status: int,
    code: str | None,
    said: str,
    model: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    errors = [error] * 2

    def script(*_: Any) -> str:
        if errors:
            raise errors[0]
        return SAID

    with running(scripted(script)) as served:
        asked = {**CHAT, "model": model}
        reply = served.post(asked)
        assert reply.status_code == status
        assert error_of(reply)["code"] == code
        assert said in error_of(reply)["message"]
        streamed = served.post({**asked, "stream": True}).text
        assert json.dumps(said)[1:-1] in streamed
        assert "[DONE]" not in streamed
        assert ("Traceback" in capfd.readouterr().err) is (status == 500)
        errors.clear()
        assert served.post(asked).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_host_that_is_gone_is_told_and_ends_the_server(stream: bool) -> None:
    def script(*_: Any) -> str:
        raise HostLost("host home is lost: its process ended")

    with running(scripted(script)) as served:
        reply = served.post({**CHAT, "stream": stream})
        assert reply.status_code == (200 if stream else 503)
        assert "host home is lost: its process ended" in reply.text
        until(served.answering.done)
    assert isinstance(served.answering.exception(), HostLost)


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_when_a_host_is_lost_is_told_so(stream: bool) -> None:
    class Dying(Slow):
        async def ask(self, ask: Any) -> Any:
            if "die" in ask.messages[-1]["content"]:
                raise HostLost("host home is lost: its process ended")
            return await super().ask(ask)

    team = scripted(lambda *_: SAID, host=Dying)
    (host,) = team.hosts.values()
    with running(team) as served, ThreadPoolExecutor(1) as threads:
        reply = threads.submit(served.post, {**CHAT, "stream": stream})
        until(lambda: host.waiting == 1)
        served.post({**CHAT, "messages": [{"role": "user", "content": "die"}]})
        told = reply.result()
        assert '"code": "server_stops"' in told.text
        assert told.status_code == (200 if stream else 503)
        until(served.answering.done)
    assert isinstance(served.answering.exception(), HostLost)


def test_a_question_without_room_is_the_askers_mistake() -> None:
    team = scripted(lambda *_: SAID)
    for host in team.hosts.values():
        host.room = 100
    with running(team) as served:
        long = [{"role": "user", "content": "1 " * 100}]
        for model in ("single", "debate"):
            reply = served.post({"model": model, "messages": long})
            assert reply.status_code == 400
            assert error_of(reply)["code"] == "context_length_exceeded"
        assert served.post(CHAT).status_code == 200


def test_a_team_without_an_answer_says_so() -> None:
    with running(scripted(lambda *_: "no sum at all")) as served:
        (choice,) = served.post({**CHAT, "model": "vote"}).json()["choices"]
        assert choice["message"]["content"] == ""
        assert (choice["finish_reason"], choice["answered"]) == ("stop", False)
        (choice,) = served.post(CHAT).json()["choices"]
        assert (choice["message"]["content"], choice["answered"]) == ("no sum at all", True)


@pytest.mark.parametrize(
    ("reply", "stop", "content", "ending"),
    [
        ("1 + 2 = 3\nQ: ne", "\nQ:", "1 + 2 = 3", ("stop", True)),
        ("1 + 2 = 3\nQ: ne", "R:", "1 + 2 = 3\nQ: ne", ("length", False)),
        ("\nQ: ne", "\nQ:", "", ("stop", False)),
        ("", "R:", "", ("length", False)),
    ],
)
def test_a_stop_before_the_cut_ends_a_whole_answer(
    reply: str, stop: str, content: str, ending: tuple[str, bool]
) -> None:
    cut = Reply(reply, False, 0, 1, 9, 0.0, 0.0)
    with running(scripted(lambda *_: cut)) as served:
        (choice,) = served.post({**CHAT, "stop": stop}).json()["choices"]
    assert choice["message"]["content"] == content
    assert (choice["finish_reason"], choice["answered"]) == ending


def test_an_empty_reply_is_no_answer() -> None:
    with running(scripted(lambda *_: " ")) as served:
        (choice,) = served.post(CHAT).json()["choices"]
        assert (choice["finish_reason"], choice["answered"]) == ("stop", False)


def test_pages_of_other_origins_are_not_let_in(served: Running) -> None:
    """Browsers ask first, and give up where nothing is allowed."""
    asking = {"Origin": "https://app.test", "Access-Control-Request-Method": "POST"}
    url = f"{served.url}/chat/completions"
    refused = httpx.options(url, headers=asking)
    assert refused.status_code == 405
    told = httpx.post(url, json=CHAT, headers={"Origin": "https://app.test"})
    for reply in (refused, told):
        assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ", b"GET /health HTTP/1.1\r\n\r\nGET"],
    ids=["nothing", "half", "a second one"],
)
def test_a_connection_without_its_headers_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "HEADERS", 0.3)
    with running(scripted(lambda *_: SAID)) as served:
        port = int(served.url.split(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=4) as client:
            client.sendall(sent.replace(b"HTTP/1.1\r\n\r\n", b"HTTP/1.1\r\nHost: x\r\n\r\n"))
            began = time.monotonic()
            with suppress(ConnectionResetError):
                while client.recv(1000):
                    if sent and time.monotonic() - began < 3:
                        client.sendall(b"x")  # drop by drop
            assert time.monotonic() - began < 3
        assert served.post(CHAT).status_code == 200


def test_a_request_that_takes_longer_than_headers_may_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "HEADERS", 0.2)
    team = scripted(lambda *_: SAID, host=Slow)
    (host,) = team.hosts.values()
    with running(team) as served:
        threading.Timer(0.6, host.go.set).start()
        assert served.post(CHAT).status_code == 200


def test_connections_have_a_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "CONNECTIONS", 5)
    with running(scripted(lambda *_: SAID)) as served:
        port = int(served.url.split(":")[2].partition("/")[0])
        with ExitStack() as clients:
            for _ in range(5):
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            late = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            with suppress(ConnectionResetError):
                assert late.recv(1) == b""
        until(lambda: served.post(CHAT).status_code == 200)
    assert capfd.readouterr().err == ""


def test_want_of_files_is_no_flood(capfd: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.new_event_loop()
    endpoint._tell(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "too many")})
    assert capfd.readouterr().err == ""
    loop.close()
