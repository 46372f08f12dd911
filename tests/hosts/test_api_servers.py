"""What servers other than OpenAI's say in their own words: parts, reasons, streams, refusals of one
prompt, empty accounts, waits, and requests that they take only with something of their own.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from typing import Any

import pytest

from comas.config.schema import read
from comas.hosts.completion import Unusable, Usage, read_completion
from comas.hosts.ledger import BudgetSpent
from comas.types import HostFailure, Sampling, UserMistake
from tests.support.endpoint import KEY, Act, Handler, answers, ask, said

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "two "}, {"x": 1}]}


@pytest.mark.parametrize(
    ("content", "text", "thoughts"),
    [
        ([THINKING, {"type": "text", "text": "\\boxed{4}"}], "\\boxed{4}", "two "),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}], "4", "hm"),
        ([{"type": "reasoning", "text": "hm"}, {"type": "output_text", "text": "4"}], "4", "hm"),
        ([{"type": "text", "text": "4"}, {"type": "text", "text": " apples"}], "4 apples", ""),
        ([{"type": "text", "text": "<think>a</think>4"}, THINKING], "4", "two \na"),
        ([{"type": "image_url", "image_url": {}}, {"type": "text", "text": 4}], "", ""),
        ([], "", ""),
    ],
)
def test_content_in_parts_is_text_and_thoughts(content: Any, text: str, thoughts: str) -> None:
    found = read_completion(json.dumps(said(content)).encode())
    assert (found.text, found.thoughts, found.usage) == (text, thoughts, Usage(7, 3))


@pytest.mark.parametrize(
    ("reason", "text", "finished"),
    [
        ("stop", "4", True),
        (None, "4", True),
        ("", "4", True),
        ("STOP", "4", True),
        ("eos_token", "4", True),
        ("model_length", "4", False),
        ("MAX_TOKENS", "4", False),
        ("Length", "4", False),
        ("SAFETY", "", True),
        ("content_filtered", "", True),
        ("Content_Filter", "", True),
    ],
)
def test_reasons_mean_the_same_in_the_words_of_each_server(
    reason: Any, text: str, finished: bool
) -> None:
    found = read_completion(json.dumps(said("4", finish_reason=reason)).encode())
    assert (found.text, found.finished, found.is_reason_known) == (text, finished, True)


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "ABORT", "network_error"])
def test_a_reply_that_the_server_broke_off_is_asked_for_again(
    reason: str, serve: Any, host_at: Any
) -> None:
    server = serve(answers(said("2 + 2 is", finish_reason=reason)), answers())
    host = host_at(server.url)
    assert asyncio.run(ask(host)).text == "4"
    assert host.events == {"broken off": 1}
    assert host.spent["requests"] == 2


@pytest.mark.parametrize("reason", ["weather", 7, {"type": "stop"}])
def test_a_reason_that_nobody_knows_is_counted(reason: Any, serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(said("4", finish_reason=reason))).url)
    assert asyncio.run(ask(host)).finished
    assert host.events == {"unknown finish_reason": 1}


def events(*chunks: Any, done: bool = True) -> bytes:
    lines = [": ping", *(f"data: {json.dumps(chunk)}" for chunk in chunks)]
    return "\n\n".join([*lines, *["data: [DONE]"] * done, ""]).encode()


def piece(reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


COST = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
STREAMS: list[tuple[bytes, str, str, bool]] = [
    (events(piece(role="assistant", content=""), piece(content="4"), piece("stop")), "4", "", True),
    (
        events(
            piece(reasoning_content="h"),
            piece(reasoning_content="m", content=None),
            piece(content="4 ap"),
            piece(index=1, content="other"),
            piece("length", content="ples"),
        ),
        "4 apples",
        "hm",
        False,
    ),
    (events(piece(content="4")), "4", "", True),
    (events({**piece("stop", content="4"), "error": None}), "4", "", True),
    (b"id: 1\nretry: 100\n" + events(piece("stop", content="4")), "4", "", True),
    (
        "data: {}\n\ndata: [DONE]".format(
            json.dumps(piece("stop", content="4\u2028\x855"), ensure_ascii=False)
        ).encode(),
        "4\u2028\x855",
        "",
        True,
    ),
    *(
        (events(piece("stop", content="4")).replace(b"\n", end), "4", "", True)
        for end in (b"\r\n", b"\r")
    ),
]


@pytest.mark.parametrize(("data", "text", "thoughts", "finished"), STREAMS)
def test_an_answer_that_comes_as_events_is_read(
    data: bytes, text: str, thoughts: str, finished: bool, serve: Any, host_at: Any
) -> None:
    whole = data.replace(b"data: [DONE]", f"data: {json.dumps(COST)}\n\ndata: [DONE]".encode())
    server = serve(answers(whole, Content_Type="text/event-stream"))
    host = host_at(server.url)
    reply = asyncio.run(ask(host))
    assert (reply.text, reply.thoughts, reply.finished) == (text, thoughts, finished)
    assert (reply.prompt_tokens, reply.tokens) == (7, 3)


def test_log_probs_of_events_are_listed_one_after_the_other() -> None:
    chunks = [piece(content="a"), piece("stop", content="b")]
    for chunk, logprob in zip(chunks, (-0.5, -1.0), strict=True):
        chunk["choices"][0]["logprobs"] = {"content": [{"logprob": logprob}]}
    assert read_completion(events(*chunks)).logprob == -1.5


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (events(piece(content="4"), done=False), "ended its answer"),
        (events(piece(content="say [DONE]"), done=False), "ended its answer"),
        (events(piece(content="4"), {"error": {"message": "gone"}}), "gone"),
        (b"data: {", "no JSON"),
        (events(), "no choices"),
    ],
)
def test_a_stream_without_an_end_is_no_answer(data: bytes, words: str) -> None:
    with pytest.raises(Unusable, match=words):
        read_completion(data)


def test_a_body_in_another_alphabet_is_read_as_it_says(serve: Any, host_at: Any) -> None:
    body = json.dumps(said("café"), ensure_ascii=False).encode("iso-8859-1")
    kind = "application/json; charset=iso-8859-1"
    assert asyncio.run(ask(host_at(serve(answers(body, Content_Type=kind)).url))).text == "café"
    wrong = "application/json; charset=klingon"
    host = host_at(serve(answers(body, Content_Type=wrong)).url, retries=0)
    with pytest.raises(HostFailure, match="no JSON"):
        asyncio.run(ask(host))


def prompted(refusal: Act, *words: str) -> Act:
    """Refuse prompts with one of these words."""

    def act(handler: Handler, asked: dict[str, Any]) -> None:
        flagged = any(word in asked["messages"][0]["content"] for word in words)
        (refusal if flagged else answers())(handler, asked)

    return act


FLAGGED = {"error": {"code": 403, "message": "Your input was flagged", "metadata": {"reasons": []}}}


@pytest.mark.parametrize(
    "refusal",
    [
        answers(FLAGGED, 403),
        answers(FLAGGED),
        answers(b"<html>Access denied</html>", 403),
        answers({"error": {"message": "model not ready"}}, 404),
    ],
)
def test_a_refusal_of_one_prompt_fails_that_turn_alone(
    refusal: Act, serve: Any, host_at: Any
) -> None:
    host = host_at(serve(prompted(refusal, "bomb", "gun")).url, retries=0)
    asyncio.run(ask(host, "2 + 2?"))
    for prompt in ("bomb?", "bomb?", "gun?", "bomb?"):  # games are played again
        with pytest.raises(HostFailure, match=r"answers 40[34]"):
            asyncio.run(ask(host, prompt))
    assert asyncio.run(ask(host, "3 + 1?")).text == "4"
    with pytest.raises(HostFailure, match=r"answers 40[34]"):
        asyncio.run(ask(host, "gun!"))


def test_a_refusal_that_repeats_ends_the_run(serve: Any, host_at: Any) -> None:
    server = serve(answers(), answers(FLAGGED, 403))
    host = host_at(server.url)
    asyncio.run(ask(host))
    for number in range(2):
        with pytest.raises(HostFailure):
            asyncio.run(ask(host, f"p{number}"))
    with pytest.raises(UserMistake, match=r"hosts\.judge\.key_env"):
        asyncio.run(ask(host, "p2"))
    revoked = host_at(serve(answers(), answers(b"", 401)).url)
    asyncio.run(ask(revoked))
    with pytest.raises(UserMistake, match=r"hosts\.judge\.key_env"):
        asyncio.run(ask(revoked))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"code": 402, "message": "Insufficient credits"}}, 200),
        ({"error": {"code": "402", "message": "no"}}, 200),
        (
            {
                "error": {
                    "type": "invalid_request_error",
                    "message": "Your credit balance is too low",
                }
            },
            400,
        ),
        ({"error": {"code": "insufficient_quota", "message": "no"}}, 200),
        ({"error": {"code": "Arrearage", "message": "Access denied"}}, 400),
        ({"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, 403),
        ({"code": "insufficient_balance", "message": "no"}, 429),
        ([{"error": {"code": 402, "message": "no"}}], 200),
        ({"type": "error", "error": {"type": "billing_error", "message": "no"}}, 403),
        ({"error": {"code": "1113", "message": "您的账户余额不足，请充值"}}, 403),
        ({"error": {"message": "账户已欠费"}}, 400),
    ],
)
def test_an_empty_account_ends_the_run_in_whatever_words(
    body: Any, status: int, serve: Any, host_at: Any
) -> None:
    server = serve(answers(), answers(body, status))
    host = host_at(server.url)
    asyncio.run(ask(host))
    with pytest.raises(BudgetSpent, match="used up"):
        asyncio.run(ask(host))
    assert len(server.asked) == 2
    assert not host.ledger.unsettled
    assert host.events == {"out of credit": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"message": "Rate limit reached: see your billing details"}}, 429),
        ({"error": {"message": "busy: insufficient balance of load between servers"}}, 429),
        ({"error": {"code": 429, "message": "slow down"}}, 200),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "wait"}}], 429),
    ],
)
def test_a_busy_server_is_no_empty_account(
    body: Any, status: int, serve: Any, host_at: Any
) -> None:
    host = host_at(serve(answers(body, status), answers()).url)
    assert asyncio.run(ask(host)).text == "4"
    assert host.events == {"429": 1}
    assert not host.ledger.unsettled


@pytest.mark.parametrize("before", ["", "A long question. " * 20])
def test_a_prompt_about_money_that_is_repeated_is_no_empty_account(
    before: str, serve: Any, host_at: Any
) -> None:
    prompt = f"{before}Who pays if there are insufficient funds?"
    host = host_at(serve(answers({"error": {"message": f"cannot read: {prompt}"}}, 400)).url)
    with pytest.raises(HostFailure, match="answers 400"):
        asyncio.run(ask(host, prompt))


@pytest.mark.parametrize("code", [401, 403])
def test_an_error_in_a_200_means_what_its_code_means(code: int, serve: Any, host_at: Any) -> None:
    server = serve(answers({"error": {"code": code, "message": "no"}}))
    host = host_at(server.url)
    with pytest.raises(UserMistake, match=r"hosts\.judge\.key_env"):
        asyncio.run(ask(host))
    assert len(server.asked) == 1
    assert not host.ledger.unsettled


def date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


def test_waits_are_told_in_seconds_milliseconds_and_as_a_date(serve: Any, host_at: Any) -> None:
    for header, least in (
        ({"Retry_After": date(3.5)}, 1.4),
        ({"retry_after_ms": "1200"}, 1.1),
        ({"Retry_After": "1.2"}, 1.1),
    ):
        host = host_at(serve(answers(b"", 429, **header), answers()).url)
        began = time.monotonic()
        asyncio.run(ask(host))
        assert least < time.monotonic() - began < 9
    for header in ({"Retry_After": date(86400)}, {"retry_after_ms": "86400000"}):
        server = serve(answers(b"", 503, **header))
        with pytest.raises(HostFailure, match=r"86\d{3} seconds, .* 120"):
            asyncio.run(ask(host_at(server.url)))
        assert len(server.asked) == 1


def test_a_refusal_of_two_parameters_together_names_their_keys(serve: Any, host_at: Any) -> None:
    words = "`temperature` and `top_p` cannot both be specified for this model."
    server = serve(answers({"error": {"message": words}}, 400))
    with pytest.raises(HostFailure, match="leave it at 1") as caught:
        asyncio.run(ask(host_at(server.url), sampling=Sampling(1.0, 0.9)))
    assert "take 1" not in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_server_that_takes_no_system_message_names_the_key(
    role: str, serve: Any, host_at: Any
) -> None:
    server = serve(answers({"error": {"message": "System role not supported"}}, 400))
    host = host_at(server.url)
    body = host.open().body("big-model", [{"role": role, "content": "hi"}], Sampling(), 0)
    with pytest.raises(HostFailure) as caught:
        asyncio.run(host._there(host._answer(host.open(), body)))
    assert ("agents.<name>.system" in str(caught.value)) == (role == "system")


# --- what a request says besides


OURS = {"host", "content-length", "content-type", "accept", "accept-encoding", "connection"}


def headers_of(found: list[dict[str, str]]) -> Act:
    def act(handler: Handler, asked: dict[str, Any]) -> None:
        found.append({name.lower(): value for name, value in handler.headers.items()})
        handler.reply(said())

    return act


def test_nothing_of_the_environment_is_sent_to_a_host_that_does_not_name_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comas.config.schema import HostConfig
    from comas.hosts.api import ApiHost

    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", f"hidden-{name}")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: hidden-1\nAuthorization: Bearer hidden-2")
    found: list[dict[str, str]] = []
    server = serve(headers_of(found))
    monkeypatch.setenv("JUDGE_KEY", KEY)
    for config in ({}, {"key_env": "JUDGE_KEY"}):
        host = ApiHost("judge", {"j": "m"}, HostConfig(api=server.url, **config))
        asyncio.run(ask(host))
        host.close()
    assert "hidden-" not in json.dumps(found)
    assert set(found[0]) - {"user-agent"} == OURS
    assert set(found[1]) - {"user-agent"} == OURS | {"authorization"}
    assert found[1]["authorization"] == f"Bearer {KEY}"


def test_headers_come_from_the_environment_and_stay_secret(
    serve: Any, host_at: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    monkeypatch.setenv("TEAM", "red team-0123")
    found: list[dict[str, str]] = []
    server = serve(headers_of(found), answers({"error": {"message": "no red team-0123 here"}}, 400))
    host = host_at(server.url, header_env={"api-key": "TEAM"})
    asyncio.run(ask(host))
    assert found[0]["api-key"] == "red team-0123"
    with pytest.raises(HostFailure, match=r"no \*\*\* here") as caught:
        asyncio.run(ask(host))
    assert "0123" not in repr(vars(host)) + repr(vars(host.open())) + repr(caught.value)
    assert "red team" not in caplog.text.replace("\\", "").partition("Traceback")[0]
    monkeypatch.delenv("TEAM")
    with pytest.raises(UserMistake, match=r"hosts\.judge\.header_env\.api-key: .* TEAM"):
        host_at(server.url, header_env={"api-key": "TEAM"}).open()


def test_a_table_for_the_body_is_sent_with_each_request(serve: Any, host_at: Any) -> None:
    server = serve(answers())
    extra = {"enable_thinking": False, "provider": {"order": ["a"]}}
    asyncio.run(ask(host_at(server.url, body=extra)))
    sent = server.asked[0]
    assert {key: sent[key] for key in extra} == extra
    assert (sent["model"], sent["max_tokens"]) == ("big-model", 256)


def test_the_tables_are_read_from_pairs_and_refuse_what_they_cannot_hold() -> None:
    judge = ["hosts.judge.api=http://127.0.0.1:1/v1", "hosts.judge.base=m"]
    pairs = ["hosts.judge.body.enable_thinking=false", "hosts.judge.header_env.api-key=TEAM_KEY"]
    host = read(None, [*judge, *pairs]).hosts["judge"]
    assert (host.body, host.header_env) == ({"enable_thinking": False}, {"api-key": "TEAM_KEY"})
    for pair, words in (
        ("hosts.judge.body.temperature=0.5", "temperature is sent"),
        ("hosts.judge.body.n=3", "n is sent, or has a key of its own"),
        ("hosts.judge.body.since=2026-01-01", "JSON cannot hold it"),
        ("hosts.judge.body.options.bias=inf", "JSON cannot hold it"),
        ("hosts.judge.header_env.api-key=sk hush 1", "name of an environment variable"),
        ("hosts.judge.header_env.Content-Length=LENGTH", "none that each request has"),
        ("hosts.judge.header_env.HOST=NAME", "none that each request has"),
        ('hosts.judge.header_env={"a b" = "X"}', "header_env"),
    ):
        with pytest.raises(UserMistake) as caught:
            read(None, [*judge, pair])
        assert words in str(caught.value)
        assert "hush" not in str(caught.value)
    with pytest.raises(UserMistake, match="behind an API"):
        read(None, ["hosts.home.body.x=1"])
