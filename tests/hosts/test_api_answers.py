"""What a server answers with 200, and what it costs: thoughts, parts, streams, errors inside, odd
usage, and budgets that hold.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.game.agent import TeamMember
from comas.game.play import TRIES, GameContext, play_all
from comas.hosts.api import ApiHost
from comas.hosts.completion import MOST, Unusable, Usage, read_completion, split_thoughts
from comas.hosts.ledger import BudgetSpent
from comas.setups import single
from comas.tasks import pick
from comas.team.spending import cost_lines, restore
from comas.types import HostFailure, Method, UserMistake
from tests.support.endpoint import (
    Act,
    Handler,
    answers,
    ask,
    breaks_off,
    given_up,
    hangs,
    records,
    said,
)


@pytest.mark.parametrize(
    ("content", "text", "thoughts"),
    [
        ("4", "4", ""),
        (" 4 ", " 4 ", ""),
        ("<think>secret plan</think>4", "4", "secret plan"),
        ("<think>\nsecret plan\n</think>\n\n4\n", "4", "secret plan"),
        ("secret plan</think>4", "4", "secret plan"),  # the template began the thought
        ("<think>secret plan", "", "secret plan"),
        ("<think>a</think>b<think>c</think>4", "4", "abc"),
        ("4 <think>secret plan", "", "4 secret plan"),
        ("<think></think>4", "4", ""),
    ],
)
def test_thoughts_are_split_from_text_as_at_a_local_host(
    content: str, text: str, thoughts: str
) -> None:
    assert split_thoughts(content) == (text, thoughts)
    found = read_completion(json.dumps(said(content)).encode())
    assert (found.text, found.thoughts) == (text, thoughts)


def test_a_judge_that_thinks_aloud_is_read_after_its_thoughts(mixed: Any, tmp_path: Path) -> None:
    def thinks(handler: Handler, asked: dict[str, Any]) -> None:
        prompt = asked["messages"][0]["content"]
        text = "<score> 3 </score>" if prompt.startswith("score ") else "Right."
        handler.reply(said(f"<think>secret plan <score> 1 </score></think>\n{text}"))

    server, keys = mixed()
    server.acts = [thinks]
    comas.train(out=str(tmp_path / "run"), **{**keys, "steps": 1, "test_questions": 0})
    _, episodes = records(tmp_path / "run")
    judged = [t for e in episodes for t in e["turns"] if t["agent"] == "judge"]
    assert {t["info"]["score"] for t in judged if t["role"] == "scoring"} == {3}
    assert {t["thoughts"] for t in judged} == {"secret plan <score> 1 </score>"}
    assert not [t for e in episodes for t in e["turns"] if "secret" in t["prompt"] + t["text"]]
    assert "secret" not in json.dumps([asked["messages"] for asked in server.asked])


@pytest.mark.parametrize(
    ("message", "text", "thoughts"),
    [
        ({"content": "4", "reasoning": "hm"}, "4", "hm"),
        ({"content": "4", "reasoning": "hm", "reasoning_content": "hm"}, "4", "hm"),
        ({"content": "4", "reasoning": {"x": 1}, "reasoning_content": None}, "4", ""),
        ({"content": None, "reasoning": "hm"}, "", "hm"),
        ({"content": "<think>a</think>4", "reasoning": "b"}, "4", "b\na"),
        ({"content": "A <think> opens. 4", "reasoning": "b"}, "A <think> opens. 4", "b"),
        ({"content": "\n</think>\n4", "reasoning": "b"}, "4", "b"),
        ({"content": None, "refusal": "I must not."}, "I must not.", ""),
        ({"content": None, "tool_calls": [{"id": "x"}]}, "", ""),
    ],
)
def test_every_form_of_a_message_is_text_and_thoughts(
    message: Any, text: str, thoughts: str
) -> None:
    found = read_completion(json.dumps(said("", message=message)).encode())
    assert (found.text, found.thoughts, found.usage) == (text, thoughts, Usage(7, 3))


@pytest.mark.parametrize(
    "content",
    [
        [[["4"]]],
        ["4"],
        [{"type": "text", "text": "4"}, 5],
        {"text": "4"},
        4,
        True,
    ],
)
def test_what_is_no_text_is_not_read_as_some_and_its_usage_is_told(content: Any) -> None:
    with pytest.raises(Unusable, match="no message of text") as caught:
        read_completion(json.dumps(said(content)).encode())
    assert caught.value.usage.is_complete


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, (7, 3)),
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, (7, 3)),
        ({"prompt_tokens": 7.0, "completion_tokens": "3"}, (7, None)),
        ({"prompt_tokens": 1e300, "completion_tokens": float("inf")}, (None, None)),
        ({"prompt_tokens": 7, "total_tokens": 10}, (7, None)),
        ({"completion_tokens": 3, "total_tokens": 10}, (None, 3)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 2}, (7, 3)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 410}, (7, 403)),  # thoughts
        ({"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 410}, (None, 3)),
        ({"prompt_tokens": -7, "completion_tokens": -3}, (None, None)),
        # nobody reads or writes with no token
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, None)),
        ({"prompt_tokens": 7.5, "completion_tokens": "3 tokens"}, (None, None)),
        ({"prompt_tokens": 10 * MOST, "completion_tokens": True}, (None, None)),
        ({"prompt_tokens": {"text": 7}, "completion_tokens": [3]}, (None, None)),
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 3}}, (None, None)),
        ([7, 3], (None, None)),
        ("7", (None, None)),
        (None, (None, None)),
    ],
)
def test_a_usage_is_read_where_it_can_mean_one_thing_only(
    usage: Any, want: tuple[int | None, int | None]
) -> None:
    found = read_completion(json.dumps({**said("4"), "usage": usage}).encode())
    assert found.usage == Usage(*want)


def test_what_a_filter_ends_is_no_answer_and_not_for_want_of_room(serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(said("4 and", finish_reason="content_filter"))).url)
    reply = asyncio.run(ask(host))
    assert (reply.text, reply.finished, reply.tokens) == ("", True, 3)
    assert host.events == {"content filter": 1}
    assert "went wrong: content filter 1 x" in next(cost_lines({"judge": host.account()}))


def inside(code: Any) -> Act:
    return answers({"error": {"message": "overloaded", "code": code}})


@pytest.mark.parametrize(
    ("act", "kind", "billed"),
    [
        (inside(None), "invalid body", 0),
        (answers({"error": "loading"}), "invalid body", 0),
        (answers(said("par", finish_reason="error")), "broken off", 1),
        (answers(said("par", finish_reason="abort")), "broken off", 1),
    ],
)
def test_a_failure_behind_a_200_is_asked_again(
    act: Act, kind: str, billed: int, serve: Any, host_at: Any
) -> None:
    host = host_at(serve(act, answers()).url)
    assert asyncio.run(ask(host)).text == "4"
    assert host.events == {kind: 1}
    assert host.spent["requests"] == 1 + billed
    assert host.spent["prompt_tokens"] == 7 * (1 + billed)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (answers({"error": {"message": "no"}}, 402), "used up"),
        (answers({"error": {"message": "no", "code": "insufficient_quota"}}, 429), "used up"),
        (answers({"error": {"message": "no", "type": "insufficient_quota"}}, 429), "used up"),
    ],
)
def test_what_waiting_does_not_mend_is_not_asked_again(
    act: Act, words: str, serve: Any, host_at: Any
) -> None:
    server = serve(act)
    with pytest.raises(UserMistake, match=words) as caught:
        asyncio.run(ask(host_at(server.url)))
    # which ends runs and evaluations in order
    assert isinstance(caught.value, BudgetSpent) == (words == "used up")
    assert len(server.asked) == 1


ODD = [
    said(["4"], 4000, 2000),
    {**said("", 4000, 2000), "choices": []},
    {**said("", 4000, 2000), "choices": {}},
    said("4", 4000, 2000, finish_reason="error"),
]


@pytest.mark.parametrize("body", ODD)
def test_a_budget_is_held_whatever_a_200_says(body: Any, serve: Any, host_at: Any) -> None:
    server = serve(answers(body))
    host = host_at(server.url, budget_tokens=10_000)
    for _ in range(3):
        with pytest.raises((HostFailure, UserMistake)):
            asyncio.run(ask(host))
    assert len(server.asked) == 2  # of 6,000 tokens each
    assert host.ledger.account()["spent"] == {"requests": 2, "prompt_tokens": 8000, "tokens": 4000}


def test_a_game_that_is_played_again_pays_for_both(serve: Any, host_at: Any) -> None:
    server = serve(answers(ODD[1]))
    host = host_at(server.url)
    method = Method(single.setup.play, *[lambda *_: None] * 3)
    context = GameContext(method, pick.task, [TeamMember("a", host, "j")], 0)
    (episode,) = asyncio.run(play_all(context, pick.task.load("test", limit=1), "x"))
    assert "no choices" in (episode.error or "")
    assert len(server.asked) > TRIES
    assert host.spent["tokens"] == 2000 * len(server.asked)


def drops(handler: Handler, asked: dict[str, Any]) -> None:
    handler.close_connection = True


def ask_on(host: ApiHost) -> None:
    """Ask whatever comes of it, until something ends that."""
    for _ in range(9):
        with suppress(HostFailure):
            asyncio.run(ask(host))


@pytest.mark.parametrize(
    "act",
    [
        hangs,
        breaks_off,
        drops,
        answers(b"<html>"),
        answers(b"", 204),
        answers(b"x" * 8_000_001),
        answers(b"", 502),
        answers(b"", 504),
        answers(b"", 524),
        answers({"error": {"code": 502, "message": "the provider is gone"}}),
        answers({"error": "something"}),
    ],
)
def test_what_may_be_billed_without_an_answer_counts_at_its_most(
    act: Act, serve: Any, host_at: Any, tmp_path: Path
) -> None:
    server = serve(act)
    host = host_at(
        server.url,
        timeout=1.5 if act is hangs else 60.0,
        budget_tokens=1000,
        budget_money=1.0,
        price=(1.0, 2.0),
    )
    with pytest.raises(BudgetSpent):
        ask_on(host)
    account = host.ledger.account()
    unsettled = account["unsettled"]
    assert (account["spent"], account["money"]) == ({}, 0.0)  # what is known is known
    assert unsettled["requests"] == len(server.asked) < 5
    assert unsettled["tokens"] == 256 * unsettled["requests"]
    assert unsettled["prompt_tokens"] > 100 * unsettled["requests"]  # bytes of the request
    assert unsettled["money"] == pytest.approx(
        (unsettled["prompt_tokens"] + 2 * unsettled["tokens"]) / 1e6
    )
    (line,) = cost_lines({"judge": account})
    assert f"{unsettled['requests']} requests without an answer that may be billed" in line
    asyncio.run(host.save(tmp_path))
    again = host_at(server.url, budget_tokens=1000)
    asyncio.run(again.load(tmp_path))
    of_them = rf"1\d\d\d tokens \(up to 1\d\d\d of them by {len(server.asked)} requests"
    with pytest.raises(BudgetSpent, match=f"its budget is spent: {of_them}"):
        asyncio.run(ask(again))
    elsewhere = host_at(server.url, budget_tokens=1000)  # another system of the same evaluation
    restore({"judge": elsewhere}, {}, [{"judge": account}])
    with pytest.raises(BudgetSpent):
        asyncio.run(ask(elsewhere))
    paying = host_at(server.url, budget_money=unsettled["money"], price=(1.0, 2.0))
    restore({"judge": paying}, {}, [{"judge": account}])
    with pytest.raises(BudgetSpent):
        asyncio.run(ask(paying))


@pytest.mark.parametrize(
    "act",
    [
        answers(b"", 429),
        answers(b"", 500),
        answers(b"no", 400),
        answers({"error": "x"}, 401),
    ],
)
def test_what_is_refused_costs_nothing(act: Act, serve: Any, host_at: Any) -> None:
    host = host_at(serve(act).url, retries=1)
    with pytest.raises((HostFailure, UserMistake)):
        asyncio.run(ask(host))
    assert (host.spent, host.ledger.unsettled) == ({}, {})


def test_a_request_that_nobody_waits_for_any_more_may_be_billed(serve: Any, host_at: Any) -> None:
    server = serve(hangs)
    host = host_at(server.url)

    asyncio.run(given_up(ask(host), server))
    until = time.monotonic() + 5
    while not host.ledger.unsettled and time.monotonic() < until:  # the host's own thread is told
        time.sleep(0.01)
    assert host.ledger.unsettled["requests"] == 1


def test_a_host_at_which_usage_is_missing_goes_on_when_its_budget_is_left_out(
    host_at: Any, tmp_path: Path
) -> None:
    host: ApiHost = host_at("http://x/v1", budget_tokens=100)
    host.ledger.spent.update({"requests": 1, "without usage": 1})
    host.ledger.work.folder = tmp_path
    with pytest.raises(
        UserMistake, match=r"without usage.*comas resume .* hosts.judge.budget_tokens=none$"
    ):
        host.ledger.check_budget()
    host_at("http://x/v1", budget_tokens="none", budget_money="none").ledger.check_budget()


def test_every_request_stands_alone(serve: Any, host_at: Any) -> None:
    cookies: list[str | None] = []

    def sticky(handler: Handler, asked: dict[str, Any]) -> None:
        cookies.append(handler.headers.get("Cookie"))
        handler.reply(said(), Set_Cookie="session=1; Path=/")

    host = host_at(serve(sticky).url)
    for _ in range(2):
        asyncio.run(ask(host))
    assert cookies == [None, None]


def test_a_prompt_with_half_a_character_is_sent(serve: Any, host_at: Any) -> None:
    server = serve(answers())
    assert asyncio.run(ask(host_at(server.url), "2 \ud800 2 é?")).text == "4"
    assert server.asked[0]["messages"][0]["content"] == "2 ? 2 é?"
