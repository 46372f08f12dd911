"""Agents behind an API: one host against a server that really listens, and what it says about
faults, costs and secrets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import HostConfig, read
from comas.hosts.api import ApiHost
from comas.hosts.completion import Completion, Unanswered, Usage, read_completion
from comas.hosts.endpoint import LARGEST
from comas.hosts.ledger import BudgetSpent
from comas.team.spending import restore
from comas.types import HostFailure, Sampling, UserMistake
from tests.support.endpoint import (
    KEY,
    Act,
    Handler,
    answers,
    ask,
    breaks_off,
    given_up,
    hangs,
    said,
)


def test_an_answer_arrives_with_its_costs(
    serve: Any, host_at: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    server = serve(answers())
    host = host_at(server.url)
    for _ in range(2):  # each in a loop of its own
        reply = asyncio.run(ask(host, sampling=Sampling(0.7, 0.9, 50)))
        assert (reply.text, reply.finished, reply.prompt_tokens, reply.tokens, reply.logprob) == (
            "4",
            True,
            7,
            3,
            0.0,
        )
    sent = server.asked[0]
    assert sent == {
        "path": "/v1/chat/completions",
        "key": f"Bearer {KEY}",
        "model": "big-model",
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 50,
        "seed": 5,
        "messages": [{"role": "user", "content": "2 + 2?"}],
    }
    assert host.spent == {"requests": 2, "prompt_tokens": 14, "tokens": 6}
    assert host.clock()["sampling"] > 0
    assert not host.events
    assert KEY not in repr(host) + repr(vars(host)) + caplog.text


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (said("cut", finish_reason="length"), Completion("cut", "", False, 0.0, Usage(7, 3))),
        (
            said("x", logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.0}]}),
            Completion("x", "", True, -1.5, Usage(7, 3)),
        ),
        (
            said("x", logprobs={"content": [{"logprob": None}]}),
            Completion("x", "", True, 0.0, Usage(7, 3)),
        ),
        (
            said("x", logprobs={"content": [{"logprob": "-inf"}]}),
            Completion("x", "", True, 0.0, Usage(7, 3)),
        ),
        (
            said("", message={"content": "4", "reasoning_content": "hm"}),
            Completion("4", "hm", True, 0.0, Usage(7, 3)),
        ),
        (
            said("", message={"content": None}, finish_reason="length"),
            Completion("", "", False, 0.0, Usage(7, 3)),
        ),
        ({"choices": said("x")["choices"]}, Completion("x", "", True, 0.0, Usage())),
        (
            {**said("x"), "usage": {"prompt_tokens": -1, "completion_tokens": 1e300}},
            Completion("x", "", True, 0.0, Usage()),
        ),
        (
            said("a\ud800b\x1b[31m\x00"),
            Completion("a\ufffdb\x1b[31m\x00", "", True, 0.0, Usage(7, 3)),
        ),
        (said("\U0001f600"), Completion("\U0001f600", "", True, 0.0, Usage(7, 3))),
    ],
    ids=repr,
)
def test_what_is_read(body: Any, want: Completion) -> None:
    found = read_completion(json.dumps(body).encode())
    assert found == want
    json.dumps(found.text, ensure_ascii=False).encode()  # can be written


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[" * 100_000,
        b"1" * 10_000,
        b'{"choices": []}',
        b'{"choices": [3]}',
        b'{"choices": {}}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": [1]}}]}',
    ],
    ids=lambda d: repr(d[:30]),
)
def test_what_is_no_completion_may_be_asked_again(data: bytes) -> None:
    with pytest.raises(Unanswered) as caught:
        read_completion(data)
    assert caught.value.kind == "invalid body"


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (answers(b"too many", 429, Retry_After="0"), "429"),
        (answers(b"oops", 500), "500"),
        (answers(b"", 503), "503"),
        (answers(b"", 408), "408"),
        (answers(b"", 409), "409"),
        (hangs, "timeout"),
        (breaks_off, "broken off"),
        (answers(b'{"choices": [{"mess'), "invalid body"),
        (answers({"choices": []}), "invalid body"),
        (answers({"choices": [{"message": None}]}), "invalid body"),
    ],
)
def test_a_fault_is_asked_again_and_nothing_twice_without_need(
    act: Act, kind: str, serve: Any, host_at: Any
) -> None:
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
    assert (len(server.asked), host.events) == (3, {"500": 3, "given up": 1})
    assert (KEY in str(caught.value), "\x1b" in str(caught.value)) == (False, False)


@pytest.mark.parametrize(
    "act",
    [
        answers(f"bad {KEY}".encode(), 500),
        answers(f"bad {KEY}".encode(), 400),
        answers({"error": {"message": KEY}}, 401),
        breaks_off,
        answers(f'{{"choices": "{KEY}'.encode()),
        answers(b"", 302, Location=f"http://127.0.0.1/{KEY}"),
        # no HTTP at all
        lambda handler, asked: handler.wfile.write(
            f"HTTP/1.1 999 {KEY}\r\nX: {KEY}\r\n{KEY}\r\n\r\n".encode()
        ),
    ],
)
def test_a_key_that_a_server_repeats_is_in_no_error_and_no_log(
    act: Act, serve: Any, host_at: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    logging.getLogger("httpcore2").setLevel(
        logging.INFO
    )  # at DEBUG it writes out what servers send
    host = host_at(serve(act).url, retries=0)
    with pytest.raises((HostFailure, UserMistake)) as caught:
        asyncio.run(ask(host))
    error: BaseException | None = caught.value
    told = (
        caplog.text + "".join(traceback.format_exception(error)) + json.dumps(host.ledger.account())
    )
    while error:
        told = told + repr(error) + repr(vars(error))
        error = error.__cause__ or error.__context__
    assert KEY not in told


def test_nobody_listens(host_at: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = host_at(f"http://127.0.0.1:{port}/v1", retries=1)
    with pytest.raises(HostFailure, match="tried 2 times"):
        asyncio.run(ask(host))
    assert host.events == {"no connection": 2, "given up": 1}


def test_retry_after_is_honoured(serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(b"", 429, Retry_After="1"), answers()).url)
    began = time.monotonic()
    asyncio.run(ask(host))
    assert 0.9 < time.monotonic() - began < 8
    host = host_at(serve(answers(b"", 429, Retry_After="86400")).url)
    with pytest.raises(HostFailure, match="wait 86400 seconds"):
        asyncio.run(ask(host))


NEWER = {
    "message": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
        " 'max_completion_tokens' instead."
    )
}


def test_a_model_that_wants_the_room_under_its_newer_name_is_told_so_from_then_on(
    serve: Any, host_at: Any
) -> None:
    server = serve(answers({"error": {**NEWER, "param": "max_tokens"}}, 400), answers())
    host = host_at(server.url, retries=0)
    for _ in range(2):
        assert asyncio.run(ask(host, sampling=Sampling(0.7, 1.0, 50))).text == "4"
    rooms = [{k: v for k, v in x.items() if k.startswith("max_")} for x in server.asked]
    assert rooms == [
        {"max_tokens": 50},
        {"max_completion_tokens": 50},
        {"max_completion_tokens": 50},
    ]
    assert host.events == {"max_tokens refused": 1}


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (NEWER["message"], 2),  # under either name
        (
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 50. This model's maximum"
                " context length is 20 tokens"
            ),
            1,
        ),
    ],
)
def test_a_room_that_is_refused_otherwise_is_refused(
    said: str, asked: int, serve: Any, host_at: Any
) -> None:
    server = serve(answers({"error": {"message": said}}, 400))
    with pytest.raises(HostFailure, match="answers 400"):
        asyncio.run(ask(host_at(server.url)))
    assert len(server.asked) == asked


def refuses(name: str, said: str, taken: Any = ()) -> Act:
    """Refuse a parameter, but for these values of it."""

    def act(handler: Handler, asked: dict[str, Any]) -> None:
        if name in asked and asked[name] not in taken:
            handler.reply({"error": {"message": said, "param": name}}, 400)
        else:
            answers()(handler, asked)

    return act


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("seed", "Extra inputs are not permitted: seed"),
        ("temperature", "Unsupported parameter: 'temperature' is not supported with this model."),
    ],
)
def test_a_parameter_that_is_refused_outright_is_left_out_from_then_on(
    name: str, said: str, serve: Any, host_at: Any
) -> None:
    server = serve(refuses(name, said))
    host = host_at(server.url, retries=0)
    for _ in range(2):
        assert asyncio.run(ask(host, sampling=Sampling(1.0))).text == "4"
    assert [name in asked for asked in server.asked] == [True, False, False]
    assert host.events == {f"{name} refused": 1}
    assert not host.ledger.unsettled


def test_several_refusals_are_learnt_one_after_the_other(serve: Any, host_at: Any) -> None:
    acts = [
        refuses("max_tokens", NEWER["message"]),
        refuses("seed", "unknown field seed"),
        answers(),
    ]
    server = serve(*acts)
    assert asyncio.run(ask(host_at(server.url, retries=0))).text == "4"
    assert [{"max_tokens", "seed"} & set(asked) for asked in server.asked] == [
        {"max_tokens", "seed"},
        {"seed"},
        set(),
    ]


def test_a_refusal_that_repeats_the_request_teaches_nothing(serve: Any, host_at: Any) -> None:
    def too_long(handler: Handler, asked: dict[str, Any]) -> None:
        told = f"the prompt is too long for the context: {json.dumps(asked)}"
        handler.reply({"error": {"message": told}}, 400)

    server = serve(*[too_long] * 3, answers())
    host = host_at(server.url, retries=0)
    with pytest.raises(HostFailure, match="model's context"):
        asyncio.run(ask(host, sampling=Sampling(1.0)))
    assert asyncio.run(ask(host, sampling=Sampling(1.0))).text == "4"
    assert {"seed", "temperature"} <= set(server.asked[-1])
    assert host.events == {"400": 1, "given up": 1}


def test_a_temperature_that_has_to_be_1_names_its_key(serve: Any, host_at: Any) -> None:
    only = "'temperature' does not support 0.7 with this model. Only the default (1) value is."
    server = serve(refuses("temperature", only, taken=(1.0,)))
    host = host_at(server.url)
    with pytest.raises(HostFailure, match=r"agents.<name>.temperature=1 .* eval_temperature=1"):
        asyncio.run(ask(host))
    with pytest.raises(UserMistake, match=r"agents.<name>.temperature=1"):
        asyncio.run(host.greet([("j", Sampling(0.7))], print))
    assert asyncio.run(ask(host, sampling=Sampling(1.0))).text == "4"
    assert server.asked[-1]["temperature"] == 1.0


def test_a_model_with_no_temperature_is_never_asked_at_another_than_1(
    serve: Any, host_at: Any
) -> None:
    server = serve(refuses("temperature", "'temperature' is not supported with this model."))
    host = host_at(server.url, retries=0)
    assert asyncio.run(ask(host, sampling=Sampling(1.0))).text == "4"
    for temperature in (0.2, 0.0):
        with pytest.raises(HostFailure, match=r"agents.<name>.temperature=1"):
            asyncio.run(ask(host, sampling=Sampling(temperature)))
        assert server.asked[-1]["temperature"] == temperature
    assert asyncio.run(ask(host, sampling=Sampling(1.0))).text == "4"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "key in the environment variable JUDGE_KEY"),
        (403, "hosts.judge.key_env"),
        (404, "big-model"),
        (302, "hosts.judge.api"),
    ],
)
def test_what_only_the_user_can_mend_stops_at_once(
    status: int, words: str, serve: Any, host_at: Any
) -> None:
    server = serve(answers({"error": {"message": f"no: {KEY}\nsecond line"}}, status))
    with pytest.raises(UserMistake) as caught:
        asyncio.run(ask(host_at(server.url)))
    assert words in str(caught.value)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == 1


def test_a_context_that_is_too_small_fails_the_turn(serve: Any, host_at: Any) -> None:
    server = serve(
        answers({"error": {"message": "This model's maximum context length is 10 tokens"}}, 400)
    )
    with pytest.raises(HostFailure, match="model's context"):
        asyncio.run(ask(host_at(server.url)))
    assert len(server.asked) == 1
    assert asyncio.run(host_at(server.url).fits("j", [], Sampling())).fits


def test_large_replies_have_a_limit(serve: Any, host_at: Any) -> None:
    server = serve(answers(said("x" * 1_000_000)), answers(said("y" * (LARGEST + 1))))
    host = host_at(server.url)
    assert len(asyncio.run(ask(host)).text) == 1_000_000
    with pytest.raises(HostFailure, match="reply too large"):
        asyncio.run(ask(host))
    assert host.events == {"too large": 1, "given up": 1}


def test_three_hundred_at_once_wait_for_their_turn(serve: Any, host_at: Any) -> None:
    def echo(handler: Handler, asked: dict[str, Any]) -> None:
        time.sleep(0.005)
        handler.reply(said(asked["messages"][0]["content"]))

    server = serve(echo)
    host = host_at(server.url, concurrency=8, timeout=60.0)

    async def everybody() -> Sequence[Any]:
        return await asyncio.gather(*(ask(host, f"p{i}", i) for i in range(300)))

    assert [r.text for r in asyncio.run(everybody())] == [f"p{i}" for i in range(300)]
    assert len(server.asked) == 300
    assert 2 <= server.most <= 8


def test_an_ask_that_is_cancelled_gives_its_place_back(serve: Any, host_at: Any) -> None:
    server = serve(hangs, answers())
    host = host_at(server.url, concurrency=1, retries=0)

    async def impatient() -> Any:
        await given_up(ask(host), server)
        return await ask(host)

    assert asyncio.run(impatient()).text == "4"


def test_closing_waits_for_no_server(serve: Any, host_at: Any) -> None:
    server = serve(hangs)
    host = host_at(server.url)

    async def leave() -> float:
        asked = asyncio.create_task(ask(host))
        while not server.asked:  # cut off before, httpx leaves a connection that nobody awaits
            await asyncio.sleep(0.01)
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
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.scheme = "https"
    host = host_at(server.url)
    with pytest.raises(UserMistake, match=r"certificate of https://"):
        asyncio.run(ask(host))
    assert host.events == {"certificate": 1}
    assert not server.asked


def test_log_probs_are_asked_for_and_kept(serve: Any, host_at: Any) -> None:
    server = serve(answers(said("x", logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.0}]})))
    assert asyncio.run(ask(host_at(server.url, logprobs=True))).logprob == -1.5
    assert server.asked[0]["logprobs"] is True


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
        with pytest.raises(
            UserMistake, match=f"20 tokens.*hosts.judge.{next(iter(budget))} is .*; raise it$"
        ):
            asyncio.run(ask(again))
        beside = host_at(server.url, **budget)  # another system of the same evaluation
        restore({"judge": beside}, {}, [{"judge": host.ledger.account()}])
        with pytest.raises(BudgetSpent, match="20 tokens"):
            asyncio.run(ask(beside))
    assert len(server.asked) == 4
    assert KEY not in (tmp_path / "judge.json").read_text()


@pytest.mark.parametrize("pair", ["thinking=false", "context=4096", "device=cpu", "engine=vllm"])
def test_what_only_own_weights_read_is_refused_at_an_api(pair: str) -> None:
    judge = ["hosts.judge.api=http://127.0.0.1:1/v1", "hosts.judge.base=m"]
    with pytest.raises(UserMistake, match="weights of our own"):
        read(None, [*judge, f"hosts.judge.{pair}"])


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("hosts.home.api=localhost:8000", "http(s)://"),
        ("hosts.home.api=http://me:hush@x/v1", "without a user"),
        ("hosts.home.api=http://x/v1?key=hush", "key_env"),
        ("hosts.home.key_env=sk-hush-1", "never the key itself"),
        ("hosts.home.key_env=K", "is for a host behind an API"),
        ("hosts.home.budget_tokens=5", "is for a host behind an API"),
    ],
)
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
    monkeypatch.delitem(sys.modules, "comas.hosts.endpoint", raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserMistake, match=r'pip install "comas\[api\]"'):
        ApiHost("judge", {"j": "m"}, HostConfig(api="http://x/v1")).open()


def test_the_library_is_loaded_where_a_host_is_opened_and_nowhere_before() -> None:
    code = (
        "import sys, comas.cli.main, comas.hosts.api, comas.serve; print({'openai', 'httpx2'} &"
        " {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
