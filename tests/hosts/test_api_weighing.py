"""Words weighed behind an API: log-probs of the alternatives to the first token, or one clear line."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from comas.game.weighing import shares_of
from comas.hosts.completion import read_completion
from comas.types import Ask, HostFailure, Reply, Sampling, UserMistake
from tests.support.endpoint import Handler, answers, said

MESSAGES = [{"role": "user", "content": "is it right? yes or no"}]


def told(*alternatives: tuple[str, float]) -> dict[str, Any]:
    """Log-probs of a reply of one token."""
    listed = [{"token": text, "logprob": math.log(p)} for text, p in alternatives]
    return {"content": [{**listed[0], "top_logprobs": listed}]}


async def weigh(
    host: Any, choices: list[str], temperature: float = 1.0, keep: bool = False
) -> Reply:
    sampling = Sampling(temperature, max_tokens=5)
    return await host.weigh(Ask("t", "j", MESSAGES, "scoring", keep, sampling, 5), choices)


def test_weights_are_those_of_the_alternatives(serve: Any, host_at: Any) -> None:
    heard = told(("Yes", 0.4), (" Yes", 0.1), ("No", 0.25), ("The", 0.2))
    server = serve(answers(said("Yes", tokens=1, logprobs=heard)))
    host = host_at(server.url)
    reply = asyncio.run(weigh(host, ["Yes", "No"], temperature=0.0))
    assert reply.weights == pytest.approx((math.log(0.5), math.log(0.25)))
    assert shares_of(reply.weights or ())[0] == pytest.approx(2 / 3)
    assert reply.text == "Yes"
    assert (reply.prompt_tokens, reply.tokens) == (7, 1)
    sent = server.asked[0]
    assert sent["max_tokens"] == 1
    assert sent["temperature"] == 1.0
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 20)


def test_a_server_that_tells_no_alternatives_is_one_clear_line(serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(said("Yes"))).url)
    with pytest.raises(UserMistake, match=r"top_logprobs.*roles"):
        asyncio.run(weigh(host, ["Yes", "No"]))


def test_words_of_which_none_is_among_the_alternatives_have_no_invented_weight(
    serve: Any, host_at: Any
) -> None:
    host = host_at(serve(answers(said("A", logprobs=told(("A", 0.9), ("The", 0.1))))).url)
    with pytest.raises(HostFailure, match=r"'Yes' .* 2 likeliest"):
        asyncio.run(weigh(host, ["Yes", "No"]))


@pytest.mark.parametrize("sure", ["Yes", "No"])
def test_a_word_that_is_left_out_is_no_likelier_than_the_least_likely_that_is_told(
    sure: str, serve: Any, host_at: Any
) -> None:
    """A judge that is sure of one word tells nothing of the other."""
    server = serve(answers(said(sure, logprobs=told((sure, 0.96), ("The", 0.03), (" A", 0.01)))))
    host = host_at(server.url)
    reply = asyncio.run(weigh(host, ["Yes", "No"], temperature=0.0))
    weights = dict(zip(["Yes", "No"], reply.weights or (), strict=True))
    assert weights.pop(sure) == pytest.approx(math.log(0.96))
    assert list(weights.values()) == pytest.approx([math.log(0.01)])
    assert reply.text == sure
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("refusal", "most"),
    [
        ("Invalid value for 'top_logprobs': must be less than or equal to 5.", 5),
        ("top_logprobs should be in the range [0, 8], got 20", 8),
        ("Requested sample logprobs of 20, which is greater than max allowed: 4", 4),
    ],
)
def test_a_server_that_tells_fewer_alternatives_is_asked_for_those(
    refusal: str, most: int, serve: Any, host_at: Any
) -> None:
    def limited(handler: Handler, asked: dict[str, Any]) -> None:
        if asked["top_logprobs"] > most:
            handler.reply({"error": {"message": refusal}}, 400)
        else:
            handler.reply(said("Yes", logprobs=told(("Yes", 0.7), ("No", 0.3))))

    server = serve(limited)
    host = host_at(server.url, retries=0)
    for _ in range(2):
        reply = asyncio.run(weigh(host, ["Yes", "No"]))
        assert reply.weights == pytest.approx((math.log(0.7), math.log(0.3)))
    assert [asked["top_logprobs"] for asked in server.asked] == [20, most, most]
    assert host.events == {"top_logprobs refused": 1}


@pytest.mark.parametrize(
    "message", ["logprobs is not supported with this model", "unknown field: top_logprobs"]
)
def test_a_server_that_refuses_log_probs_is_one_clear_line(
    message: str, serve: Any, host_at: Any
) -> None:
    host = host_at(serve(answers({"error": {"message": message}}, 400)).url)
    with pytest.raises(UserMistake, match=r"top_logprobs.*roles"):
        asyncio.run(weigh(host, ["Yes", "No"]))


def test_alternatives_are_named_by_their_bytes_where_a_server_tells_them() -> None:
    raw = [
        {"token": "\u0120Yes", "logprob": -0.5, "bytes": list(b" Yes")},
        {"token": "\u2581No", "logprob": -1.5, "bytes": list(b" No")},
        {"token": "Maybe", "logprob": -2.5, "bytes": None},
    ]
    body = said("Yes", logprobs={"content": [{"top_logprobs": raw}]})
    first = read_completion(json.dumps(body).encode()).first
    assert first is not None
    assert first.by_text == {"Yes": -0.5, "No": -1.5, "Maybe": -2.5}


def test_words_that_differ_by_spaces_alone_do_not_share_a_weight(serve: Any, host_at: Any) -> None:
    server = serve(answers(said("Yes", logprobs=told(("Yes", 0.9), ("No", 0.1)))))
    with pytest.raises(UserMistake, match="differ by spaces alone"):
        asyncio.run(weigh(host_at(server.url), ["Yes", " Yes"]))
    assert server.asked == []  # and nothing was paid


def test_nothing_is_kept_for_learning(serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(said("Yes"))).url)
    with pytest.raises(UserMistake, match="nobody learns"):
        asyncio.run(weigh(host, ["Yes", "No"], keep=True))


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": []},
        {"content": [{"top_logprobs": None}]},
        {"content": [{"top_logprobs": [{"token": "Yes"}]}]},
        {"content": [{"top_logprobs": [{"token": "Yes", "logprob": "much"}]}]},
        {"content": [{"top_logprobs": []}]},
        {"content": [{"top_logprobs": [{"token": "Yes", "logprob": 1000.0}]}]},
        {"content": [{"top_logprobs": [{"token": "Yes", "logprob": math.inf}]}]},
        {"content": [{"top_logprobs": [{"token": "Yes", "logprob": math.nan}]}]},
        {"content": [{"top_logprobs": [{"token": "Yes", "logprob": 10**400}]}]},
    ],
)
def test_log_probs_in_another_form_are_none(logprobs: Any) -> None:
    body = said("Yes", logprobs=logprobs)
    assert read_completion(json.dumps(body).encode()).first is None


def test_a_word_that_is_next_to_impossible_was_told_all_the_same() -> None:
    """Its probability is 0 in float64, its log-prob is not."""
    listed = [{"token": "Yes", "logprob": 0.0}, {"token": "No", "logprob": -800.0}]
    body = said("Yes", logprobs={"content": [{"top_logprobs": listed}]})
    assert read_completion(json.dumps(body).encode()).first == ({"Yes": 0.0, "No": -800.0}, -800.0)


def test_spellings_that_are_added_up_do_not_raise_the_bound(serve: Any, host_at: Any) -> None:
    """The least likely beginning that is told counts by itself, not with its other spellings."""
    listed = told(("Yes", 0.98), (" Yes", 0.01))
    host = host_at(serve(answers(said("Yes", logprobs=listed))).url)
    reply = asyncio.run(weigh(host, ["Yes", "No"], temperature=0.0))
    assert reply.weights == pytest.approx((math.log(0.99), math.log(0.01)))
