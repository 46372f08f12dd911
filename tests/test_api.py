"""Agents behind an API, against a server that really listens and does what servers do: answers, faults, lies."""

from __future__ import annotations

import asyncio
import email.utils
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import comas
from comas.config import HostConfig, read, resolve
from comas.estimate import estimate, memory
from comas.exam import Exam, Observer, Plan
from comas.hosts.api import LARGEST, ApiHost, Said, Trouble, read_said, wait_of
from comas.team import load, run_sync, team_of
from comas.train import Watch, resume_async
from comas.types import HostFailure, Sampling, UserMistake

KEY = "sk-very-secret-0123456789"


def said(text: str = "4", prompt: int = 7, tokens: int = 3, **choice: Any) -> dict[str, Any]:
    """A chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}], "usage": usage}


Act = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Does what the script says, one act per request, the last one from then on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Endpoint

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.gate:
            self.server.asked.append({"path": self.path, "key": self.headers.get("Authorization"), **asked})
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

    def __init__(self, *acts: Act) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts: list[Act] = list(acts)
        self.asked: list[dict[str, Any]] = []
        self.gate = threading.Lock()
        self.open = self.most = 0
        self.scheme = "http"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/v1"


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    servers: list[Endpoint] = []

    def start(*acts: Act) -> Endpoint:
        servers.append(Endpoint(*acts))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def host_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ApiHost]]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    hosts: list[ApiHost] = []

    def make(url: str, **config: Any) -> ApiHost:
        hosts.append(ApiHost("judge", {"j": "big-model"}, HostConfig(api=url, key_env="JUDGE_KEY", **config), delay=0.01))
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


async def ask(host: ApiHost, prompt: str = "2 + 2?", seed: int = 5, sampling: Sampling | None = None) -> Any:
    sampling = sampling or Sampling(0.7)
    return await host.ask("0/q/0/solution0", "j", [{"role": "user", "content": prompt}], sampling, seed, False, "solution")


def test_an_answer_arrives_with_its_costs(serve: Any, host_at: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    server = serve(answers())
    host = host_at(server.url)
    for _ in range(2):  # each in a loop of its own
        reply = asyncio.run(ask(host, sampling=Sampling(0.7, 0.9, 50)))
        assert (reply.text, reply.finished, reply.prompt_tokens, reply.tokens, reply.logprob) == ("4", True, 7, 3, 0.0)
    sent = server.asked[0]
    assert sent == {
        "path": "/v1/chat/completions", "key": f"Bearer {KEY}", "model": "big-model", "temperature": 0.7, "top_p": 0.9,
        "max_tokens": 50, "seed": 5, "messages": [{"role": "user", "content": "2 + 2?"}],
    }
    assert host.spent == {"requests": 2, "prompt_tokens": 14, "tokens": 6}
    assert host.seconds["sampling"] > 0
    assert not host.events
    assert KEY not in repr(host) + repr(vars(host)) + caplog.text


@pytest.mark.parametrize(("body", "want"), [
    (said("cut", finish_reason="length"), Said("cut", "", False, 0.0, 7, 3)),
    (said("x", logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.0}]}), Said("x", "", True, -1.5, 7, 3)),
    (said("x", logprobs={"content": [{"logprob": None}]}), Said("x", "", True, 0.0, 7, 3)),
    (said("x", logprobs={"content": [{"logprob": "-inf"}]}), Said("x", "", True, 0.0, 7, 3)),
    (said("", message={"content": "4", "reasoning_content": "hm"}), Said("4", "hm", True, 0.0, 7, 3)),
    (said("", message={"content": None}, finish_reason="length"), Said("", "", False, 0.0, 7, 3)),
    ({"choices": said("x")["choices"]}, Said("x", "", True, 0.0, None, None)),
    ({**said("x"), "usage": {"prompt_tokens": -1, "completion_tokens": 1e300}}, Said("x", "", True, 0.0, None, None)),
    (said("a\ud800b\x1b[31m\x00"), Said("a\ufffdb\x1b[31m\x00", "", True, 0.0, 7, 3)),
    (said("\U0001f600"), Said("\U0001f600", "", True, 0.0, 7, 3)),
], ids=repr)
def test_what_is_read(body: Any, want: Said) -> None:
    found = read_said(json.dumps(body).encode())
    assert found == want
    json.dumps(found.text, ensure_ascii=False).encode()  # can be written


@pytest.mark.parametrize("data", [
    b"", b"{", b"\xff\xfe", b"null", b"[]", b"[" * 100_000, b"1" * 10_000, b'{"choices": []}', b'{"choices": [3]}',
    b'{"choices": {}}', b'{"choices": [{}]}', b'{"choices": [{"message": null}]}', b'{"choices": [{"message": {"content": [1]}}]}',
], ids=lambda d: repr(d[:30]))
def test_what_is_no_completion_may_be_asked_again(data: bytes) -> None:
    with pytest.raises(Trouble) as caught:
        read_said(data)
    assert caught.value.kind == "invalid body"


@pytest.mark.parametrize(("act", "kind"), [
    (answers(b"too many", 429, Retry_After="0"), "429"), (answers(b"oops", 500), "500"), (answers(b"", 503), "503"),
    (answers(b"", 408), "408"), (answers(b"", 409), "409"), (hangs, "timeout"), (breaks_off, "connection"),
    (answers(b'{"choices": [{"mess'), "invalid body"), (answers({"choices": []}), "invalid body"),
    (answers({"choices": [{"message": None}]}), "invalid body"),
])
def test_a_fault_is_asked_again_and_nothing_twice_without_need(act: Act, kind: str, serve: Any, host_at: Any) -> None:
    server = serve(act, answers())
    host = host_at(server.url, timeout=1.0 if kind == "timeout" else 60.0)
    assert asyncio.run(ask(host)).text == "4"
    assert asyncio.run(ask(host)).text == "4"
    assert len(server.asked) == 3
    assert host.events == {kind: 1}
    assert host.spent["requests"] == 2


def test_a_fault_that_stays_is_a_failure_of_the_machine(serve: Any, host_at: Any) -> None:
    server = serve(answers(f"bad {KEY} \x1b[31m".encode(), 500))
    host = host_at(server.url, retries=2)
    with pytest.raises(HostFailure, match=r"answers 500: bad \*\*\* .*tried 3 times") as caught:
        asyncio.run(ask(host))
    assert (len(server.asked), host.events, KEY in str(caught.value), "\x1b" in str(caught.value)) == (3, {"500": 3}, False, False)


def test_nobody_listens(host_at: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = host_at(f"http://127.0.0.1:{port}/v1", retries=1)
    with pytest.raises(HostFailure, match="tried 2 times"):
        asyncio.run(ask(host))
    assert host.events == {"connection": 2}


def test_retry_after_is_honoured_as_seconds_and_as_a_date(serve: Any, host_at: Any) -> None:
    for wait in (lambda: "1", lambda: email.utils.formatdate(time.time() + 2, usegmt=True)):  # dates have whole seconds
        host = host_at(serve(answers(b"", 429, Retry_After=wait()), answers()).url)
        began = time.monotonic()
        asyncio.run(ask(host))
        assert 0.9 < time.monotonic() - began < 8
    host = host_at(serve(answers(b"", 429, Retry_After="86400")).url)
    with pytest.raises(HostFailure, match="asks to wait 86400 seconds"):
        asyncio.run(ask(host))
    assert [wait_of(x) for x in (None, "soon", "-1", "2.5", "Mon, 01 Jan 1990 00:00:00 GMT", "9" * 400)] == [
        None, None, None, 2.5, 0.0, None
    ]


def test_pauses_grow_and_are_the_requests_own() -> None:
    host = ApiHost("judge", {"j": "m"}, HostConfig(api="http://x/v1"))
    pauses = [host._pause(7, n, Trouble("500", "")) for n in range(4)]
    assert pauses == [host._pause(7, n, Trouble("500", "")) for n in range(4)]
    assert all(0.5 * 2**n <= p <= 2**n for n, p in enumerate(pauses))
    assert host._pause(8, 0, Trouble("500", "")) != pauses[0]


@pytest.mark.parametrize(("status", "words"), [
    (401, "key in the environment variable JUDGE_KEY"), (403, "hosts.judge.key_env"), (404, "big-model"), (302, "hosts.judge.api"),
])
def test_what_only_the_user_can_mend_stops_at_once(status: int, words: str, serve: Any, host_at: Any) -> None:
    server = serve(answers({"error": {"message": f"no: {KEY}\nsecond line"}}, status))
    with pytest.raises(UserMistake) as caught:
        asyncio.run(ask(host_at(server.url)))
    assert words in str(caught.value)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == 1


def test_a_context_that_is_too_small_fails_the_turn(serve: Any, host_at: Any) -> None:
    server = serve(answers({"error": {"message": "This model's maximum context length is 10 tokens"}}, 400))
    with pytest.raises(HostFailure, match="do not fit the model's context"):
        asyncio.run(ask(host_at(server.url)))
    assert len(server.asked) == 1
    assert host_at(server.url).fits("j", [], Sampling())


def test_large_replies_have_a_limit(serve: Any, host_at: Any) -> None:
    server = serve(answers(said("x" * 1_000_000)), answers(said("y" * (LARGEST + 1))))
    host = host_at(server.url)
    assert len(asyncio.run(ask(host)).text) == 1_000_000
    with pytest.raises(HostFailure, match="reply too large"):
        asyncio.run(ask(host))
    assert host.events == {"too large": 1}


def test_a_thousand_at_once_wait_for_their_turn(serve: Any, host_at: Any) -> None:
    def echo(handler: Handler, asked: dict[str, Any]) -> None:
        time.sleep(0.005)
        handler.reply(said(asked["messages"][0]["content"]))

    server = serve(echo)
    host = host_at(server.url, concurrency=8, timeout=60.0)

    async def everybody() -> Sequence[Any]:
        return await asyncio.gather(*(ask(host, f"p{i}", i) for i in range(1000)))

    assert [r.text for r in asyncio.run(everybody())] == [f"p{i}" for i in range(1000)]
    assert len(server.asked) == 1000
    assert 2 <= server.most <= 8


def test_an_ask_that_is_cancelled_gives_its_place_back(serve: Any, host_at: Any) -> None:
    host = host_at(serve(hangs, answers()).url, concurrency=1, retries=0)

    async def impatient() -> Any:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(host), 0.2)
        return await ask(host)

    assert asyncio.run(impatient()).text == "4"


def test_closing_waits_for_no_server(serve: Any, host_at: Any) -> None:
    host = host_at(serve(hangs).url)

    async def leave() -> float:
        asked = asyncio.create_task(ask(host))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        host.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return time.monotonic() - began

    assert asyncio.run(leave()) < 3
    host.close()  # twice is no harm


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_vouches_for(serve: Any, host_at: Any, tmp_path: Path) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out crt -days 2 -subj /CN=x"
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    server = serve(answers())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    server.socket, server.scheme = context.wrap_socket(server.socket, server_side=True), "https"
    with pytest.raises(UserMistake, match=r"certificate of https://.* is not trusted"):
        asyncio.run(ask(host_at(server.url)))
    assert not server.asked


def test_missing_usage_is_unknown_and_no_budget_holds_without(serve: Any, host_at: Any) -> None:
    server = serve(answers({"choices": said()["choices"]}))
    host = host_at(server.url)
    assert asyncio.run(ask(host)).tokens == 0
    assert host.spent["without usage"] == 1
    host = host_at(server.url, budget_tokens=100)
    asyncio.run(ask(host))
    with pytest.raises(UserMistake, match="without usage"):
        asyncio.run(ask(host))


def test_budgets_of_tokens_and_of_money(serve: Any, host_at: Any, tmp_path: Path) -> None:
    server = serve(answers())
    for budget in ({"budget_tokens": 20}, {"budget_money": 2e-5, "price": (1.0, 1.0)}):
        host = host_at(server.url, **budget)
        for _ in range(2):
            asyncio.run(ask(host))
        asyncio.run(host.save(tmp_path))
        again = host_at(server.url, **budget)  # another process
        asyncio.run(again.load(tmp_path))
        with pytest.raises(UserMistake, match=f"20 tokens.*hosts.judge.{next(iter(budget))} is .*config.toml.*comas resume"):
            asyncio.run(ask(again))
    assert len(server.asked) == 4
    assert KEY not in (tmp_path / "judge.json").read_text()


@pytest.mark.parametrize(("pair", "words"), [
    ("hosts.home.api=localhost:8000", "http(s)://"), ("hosts.home.api=http://me:hush@x/v1", "without a user"),
    ("hosts.home.api=http://x/v1?key=hush", "key_env"), ("hosts.home.key_env=sk-hush-1", "never the key itself"),
    ("hosts.home.key_env=K", "is for a host behind an API"), ("hosts.home.budget_tokens=5", "is for a host behind an API"),
])
def test_mistakes_in_the_config_do_not_repeat_secrets(pair: str, words: str) -> None:
    with pytest.raises(UserMistake) as caught:
        read(None, [pair])
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


def test_money_needs_a_price_and_a_key_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserMistake, match="needs a price"):
        read(None, ["hosts.home.api=http://x/v1", "hosts.home.budget_money=1.0"])
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    host = ApiHost("judge", {"j": "m"}, HostConfig(api="http://x/v1", key_env="NO_SUCH_KEY"))
    with pytest.raises(UserMistake, match="NO_SUCH_KEY is not set"):
        host.open()
    monkeypatch.setenv("NO_SUCH_KEY", "two words")
    with pytest.raises(UserMistake, match="cannot be a key") as caught:
        host.open()
    assert "words" not in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(UserMistake, match=r'pip install "comas\[api\]"'):
        ApiHost("judge", {"j": "m"}, HostConfig(api="http://x/v1")).open()


MIXED = {
    "hosts": {"home": {"base": "seed"}, "judge": {"base": "big-model", "key_env": "JUDGE_KEY"}},
    "agents": {
        "ann": {"roles": ["solution"]}, "bob": {"roles": ["solution"]},
        "judge": {"host": "judge", "roles": ["evaluation", "scoring"], "frozen": False},
    },
    "steps": 2, "questions": 8, "test_questions": 8, "eval_every": 0, "threads": 1, "checkpoint_every": 1,
}


def judges(handler: Handler, asked: dict[str, Any]) -> None:
    prompt = asked["messages"][0]["content"]
    score = 3 if len(prompt) % 2 else 1  # so that there is something to learn
    handler.reply(said(f"<score> {score} </score>" if prompt.startswith("score ") else "It looks right."))


@pytest.fixture
def mixed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Endpoint, dict[str, Any]]]:
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def make(*acts: Act, **judge: Any) -> tuple[Endpoint, dict[str, Any]]:
        server = serve(*acts, judges)
        hosts = {**MIXED["hosts"], "judge": {**MIXED["hosts"]["judge"], "api": server.url, **judge}}
        return server, {**MIXED, "hosts": hosts}

    return make


def records(run: Path) -> tuple[list[Any], list[Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    episodes = [json.loads(x) for p in sorted((run / "episodes").glob("*.jsonl")) for x in p.read_text().splitlines()]
    return [json.loads(x) for x in lines], episodes


def no_secret(run: Path) -> None:
    assert not [p for p in run.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


def test_a_frozen_judge_behind_an_api_while_two_learn(mixed: Any, tmp_path: Path) -> None:
    server, keys = mixed(answers(b"", 429, Retry_After="0"))
    out = tmp_path / "run"
    comas.train(out=str(out), **keys)
    run_sync(resume_async(out, Watch(), steps=3))
    metrics, episodes = records(out)
    assert len(metrics) == 3
    turns = [t for e in episodes for t in e["turns"]]
    judged = [t for t in turns if t["agent"] == "judge"]
    assert len(judged) == len(server.asked) - 1 > 0  # the one that was refused; nothing else was asked twice or of no use
    assert all(t["policy"] == "judge/judge" and t["tokens"] == 3 and "advantage" not in t["info"] for t in judged)
    assert {p for m in metrics for p in m["policies"]} == {"home/ann", "home/bob"}
    assert max(p["grad_norm"] for m in metrics for p in m["policies"].values()) > 1e-3
    cost = [row for m in metrics for row in m["cost"] if row["agent"] == "judge"]
    spent = json.loads((out / "spent.json").read_text())["judge"]
    assert sum(r["tokens"] for r in cost) == spent["spent"]["tokens"] == 3 * len(judged)
    assert sum(r["prompt_tokens"] for r in cost) == spent["spent"]["prompt_tokens"] == 7 * len(judged)
    assert spent["events"] == {"429": 1}
    kept = {p.name for p in (out / "checkpoints" / "step-3").iterdir()}
    assert kept == {"ann", "bob", "home.json", "judge.json", "manifest.json"}
    assert tomllib.loads((out / "config.toml").read_text())["agents"]["judge"]["frozen"] is True
    no_secret(out)
    team = load(out)
    try:
        assert team.discuss("12 7 3 5 -> 22").error is None
        assert team.bases() == [f"big-model at {server.url}", "seed"]
    finally:
        team.close()
    with pytest.raises(UserMistake, match="in the place of what was trained"):
        load(out, overrides=[f"hosts.home.api={server.url}"])


def test_a_spent_budget_stops_the_run_and_a_larger_one_lets_it_go_on(mixed: Any, tmp_path: Path) -> None:
    server, keys = mixed(budget_tokens=30, concurrency=1)
    out = tmp_path / "run"
    with pytest.raises(UserMistake, match=r"30 tokens.*comas resume"):
        comas.train(out=str(out), **keys)
    assert len(server.asked) == 3
    assert json.loads((out / "spent.json").read_text())["judge"]["spent"]["requests"] == 3
    with pytest.raises(UserMistake, match="30 tokens"):  # it has been spent, though the step was not kept
        run_sync(resume_async(out, Watch()))
    assert len(server.asked) == 3
    config = tomllib.loads((out / "config.toml").read_text())
    config["hosts"]["judge"]["budget_tokens"] = 100_000
    (out / "config.toml").write_text(tomli_w.dumps(config))
    assert run_sync(resume_async(out, Watch())).steps == 2
    assert json.loads((out / "spent.json").read_text())["judge"]["spent"]["requests"] == len(server.asked)
    no_secret(out)


def test_discussions_that_the_server_lets_down_are_failed_and_never_wrong(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def picky(handler: Handler, asked: dict[str, Any]) -> None:
        """Breaks down at one question for ever."""
        prompt = asked["messages"][0]["content"]
        with handler.server.gate:
            seen.append(prompt.split("->")[0])
        if prompt.split("->")[0] == seen[0]:
            handler.reply(f"bad luck, {KEY}".encode(), 500)
        else:
            judges(handler, asked)

    _, keys = mixed(*[picky] * 500, retries=1)
    monkeypatch.setattr(ApiHost, "_pause", lambda self, seed, attempt, trouble: 0.01)
    comas.train(out=str(tmp_path / "run"), **{**keys, "steps": 1})
    (metrics,), episodes = records(tmp_path / "run")
    failed = [e for e in episodes if e["error"]]
    assert metrics["counts"]["failed"] == len(failed) >= 1
    assert all("host judge" in e["error"] and "answers 500" in e["error"] for e in failed)
    assert all(t["reward"] is None for e in failed for t in e["turns"])
    no_secret(tmp_path / "run")


def test_a_key_that_is_refused_ends_the_run_in_one_line(mixed: Any, tmp_path: Path) -> None:
    _, keys = mixed(*[answers({"error": {"message": f"Incorrect key {KEY}"}}, 401)] * 500)
    with pytest.raises(UserMistake, match="JUDGE_KEY") as caught:
        comas.train(out=str(tmp_path / "run"), **keys)
    assert KEY not in str(caught.value)
    no_secret(tmp_path / "run")


def test_a_run_does_not_begin_without_its_key(mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, keys = mixed()
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserMistake, match="JUDGE_KEY is not set"):
        comas.train(out=str(tmp_path / "run"), **keys)
    assert not (tmp_path / "run").exists()
    plan = Plan(["m"], limit=3, pairs=["hosts.home.api=http://localhost:1/v1", "hosts.home.key_env=JUDGE_KEY"])
    with pytest.raises(UserMistake, match="JUDGE_KEY is not set"):
        asyncio.run(Exam.create(plan, str(tmp_path / "eval")).go(Observer()))
    assert not (tmp_path / "eval").exists()


def test_estimates_leave_others_models_out(mixed: Any) -> None:
    _, keys = mixed()
    alone = {**keys, "agents": {k: v for k, v in keys["agents"].items() if k != "judge"}}
    found, without = (resolve(read(None, k)) for k in (keys, alone))
    assert estimate(*found) == estimate(*without)
    assert not [key for key in memory(*found) if "host judge" in key]
    with pytest.raises(UserMistake, match="no agent can learn"):
        comas.train(**{**keys, "agents": {"judge": {"host": "judge"}}})


def test_a_team_behind_an_api_is_evaluated_with_the_models_of_a_local_host(serve: Any, tmp_path: Path) -> None:
    """The endpoint is a seed model, so that its answers mean something."""
    team = team_of(agents=1, threads=1)
    gate = ThreadPoolExecutor(1)  # a local host belongs to one loop at a time

    def seed_model(handler: Handler, asked: dict[str, Any]) -> None:
        sampling = Sampling(asked["temperature"], 1.0, asked["max_tokens"])
        asking = team.hosts["home"].ask("t", "a0", asked["messages"], sampling, asked["seed"], False, "solution")
        reply = gate.submit(asyncio.run, asking).result()
        handler.reply(said(reply.text, reply.prompt_tokens, reply.tokens, finish_reason="stop" if reply.finished else "length"))

    server = serve(answers(b"", 503), seed_model)
    plan = Plan(["some/model"], limit=6, setups=["single", "vote:votes=2"], pairs=[f"hosts.home.api={server.url}", "agents=1"])
    try:
        found = asyncio.run(Exam.create(plan, str(tmp_path / "eval")).go(Observer()))
    finally:
        gate.shutdown()
        team.close()
    assert [c["setup"] for c in found["cells"]] == ["single", "vote:votes=2"]
    assert len(server.asked) == 6 + 12 + 1
    lines = [json.loads(x) for p in (tmp_path / "eval" / "answers").glob("*.jsonl") for x in p.read_text().splitlines()]
    games = [x for x in lines if "verdict" in x]
    assert {g["verdict"] for g in games} <= {"right", "wrong"}
    assert all(t["tokens"] > 1 for g in games for t in g["turns"])
    assert {base for x in lines if "sitting" in x for base in x["sitting"]["bases"]} == {f"some/model at {server.url}"}
