"""What clients of OpenAI's API get from a team: the shipped tiny model, asked by the `openai`
client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from comas.evaluation.systems import system_team, team_of
from comas.serve.playing import models_of
from comas.team.build import Team
from comas.types import UserMistake
from tests.support.serving import Running, running, scripted

PUZZLE = [{"role": "user", "content": "10 5 6 9 -> 24"}]
DISCUSSION = {"discussion": True}
ALL = ["single", "autogen", "debate", "refine", "steps", "vote", "game"]
"""What a team of copies can play of questions."""


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = system_team("tiny", ["agents=3", "threads=1"])
    yield team
    team.close()


@pytest.fixture(scope="module")
def served(team: Team) -> Iterator[Running]:
    with running(team) as endpoint:
        yield endpoint


def ask(served: Running, model: str = "single", **settings: Any) -> Any:
    asked = {"messages": PUZZLE, "seed": 7, **settings}
    return served.client.chat.completions.create(model=model, **asked)


def texts(reply: Any) -> list[str]:
    return [choice.message.content for choice in reply.choices]


def test_setups_are_models(served: Running) -> None:
    models = served.client.models.list().data
    assert [model.id for model in models] == ALL
    said = {model.id: model.answered_by for model in models}
    assert (said["single"], said["debate"]) == ("1 agent", "3 copies of one model")


@pytest.mark.parametrize("model", ALL)
def test_every_model_answers_with_a_turn_of_its_discussion(served: Running, model: str) -> None:
    reply = ask(served, model, extra_body=DISCUSSION)
    (choice,) = reply.choices
    said = [turn["text"] for turn in choice.discussion]
    assert choice.message.content in said
    assert choice.answered
    assert choice.finish_reason == "stop"
    assert reply.model == model
    usage = reply.usage
    assert usage.completion_tokens == sum(turn["tokens"] for turn in choice.discussion)
    assert usage.prompt_tokens == sum(turn["prompt_tokens"] for turn in choice.discussion)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert len({turn["id"] for turn in choice.discussion}) == len(said)


def test_the_discussion_comes_only_on_demand(served: Running) -> None:
    raw = served.post({"model": "vote", "messages": PUZZLE}).json()
    assert "discussion" not in raw["choices"][0]


@pytest.mark.parametrize("model", ["single", "debate"])
def test_a_stream_is_the_same_answer(served: Running, model: str) -> None:
    whole = ask(served, model)
    options = {"include_usage": True}
    *pieces, last = list(ask(served, model, stream=True, stream_options=options))
    deltas = [piece.choices[0].delta for piece in pieces]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == texts(whole)[0]
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert all(piece.usage is None for piece in pieces)
    assert last.choices == []
    assert last.usage == whole.usage
    assert len({piece.id for piece in [*pieces, last]}) == 1


def test_a_stream_ends_with_done_and_without_usage_where_none_is_wanted(served: Running) -> None:
    reply = served.post({"model": "single", "messages": PUZZLE, "stream": True, "n": 2})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, end = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert end == "[DONE]"
    records = [json.loads(event) for event in events]
    assert not any("usage" in record for record in records)
    ends = [r["choices"][0] for r in records if r["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == [0, 1]


def test_a_stream_ends_with_the_discussion_where_it_is_wanted(served: Running) -> None:
    whole = ask(served, "debate", extra_body=DISCUSSION)
    *_, last = list(ask(served, "debate", stream=True, extra_body=DISCUSSION))
    assert last.choices[0].discussion == whole.choices[0].discussion


def test_the_same_seed_is_the_same_text_whatever_else_is_asked(served: Running) -> None:
    before = texts(ask(served, "game"))
    others = [("single", seed) for seed in range(8)] + [("vote", seed) for seed in range(4)]
    with ThreadPoolExecutor(24) as threads:
        crowd = [threads.submit(ask, served, m, seed=s, n=2) for m, s in others]
        again = [threads.submit(ask, served, "game") for _ in range(4)]
        assert all(texts(each.result()) == before for each in again)
        singles = {texts(each.result())[0] for each in crowd[:8]}
    assert len(singles) > 3, "seeds that differ draw differently"


def test_without_a_seed_one_is_drawn_and_told(served: Running) -> None:
    first = ask(served, seed=None, temperature=1.5)
    second = ask(served, seed=None, temperature=1.5)
    assert first.seed != second.seed
    assert texts(ask(served, seed=first.seed, temperature=1.5)) == texts(first)


def test_choices_are_answers_of_their_own(served: Running) -> None:
    one = ask(served, temperature=1.5)
    five = ask(served, temperature=1.5, n=5)
    assert [choice.index for choice in five.choices] == [0, 1, 2, 3, 4]
    assert texts(five)[0] == texts(one)[0]
    assert len(set(texts(five))) > 1
    assert five.usage.completion_tokens > one.usage.completion_tokens


def test_temperature_is_that_of_the_request(served: Running) -> None:
    greedy = {texts(ask(served, seed=seed, temperature=0))[0] for seed in range(6)}
    drawn = {texts(ask(served, seed=seed, temperature=2))[0] for seed in range(6)}
    assert len(greedy) == 1 < len(drawn)
    assert {texts(ask(served, seed=seed, top_p=1e-6, temperature=2))[0] for seed in range(6)} == (
        greedy
    )


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_bounds_every_reply(served: Running, key: str) -> None:
    cut = ask(served, **{key: 4})
    assert cut.usage.completion_tokens == 4
    assert cut.choices[0].finish_reason == "length"
    assert len(texts(cut)[0]) > 1
    assert texts(ask(served))[0].startswith(texts(cut)[0])
    assert not cut.choices[0].answered
    vote = ask(served, "vote", **{key: 4}, extra_body=DISCUSSION)
    assert {turn["tokens"] for turn in vote.choices[0].discussion} == {4}
    assert (texts(vote)[0], vote.choices[0].finish_reason) == ("", "length")
    assert texts(ask(served, **{key: 10_000})) == texts(ask(served))


def test_an_answer_ends_before_a_stop(served: Running) -> None:
    whole = texts(ask(served))[0]
    assert " = " in whole.partition(" + ")[2]
    cut = ask(served, stop=["nothing of it", " = "])
    assert texts(cut)[0] == whole.partition(" = ")[0]
    assert cut.choices[0].finish_reason == "stop"


def test_a_setup_with_options_and_a_method_are_models(team: Team) -> None:
    with running(team, setups=["vote:votes=3", "comas:rounds=1"]) as served:
        assert served.endpoint.models == ["vote:votes=3", "comas:rounds=1"]
        reply = ask(served, "vote:votes=3", extra_body=DISCUSSION)
        assert len(reply.choices[0].discussion) == 3
        assert ask(served, "comas:rounds=1").choices[0].message.content


def test_what_cannot_be_played_is_no_model() -> None:
    def said(*_: object) -> str:
        return "<calculator>1 + 1</calculator>"

    plain = models_of(scripted(said))
    assert "tools" not in plain
    assert "duel" not in plain
    assert "tools" in models_of(scripted(said, 'tools=["calculator"]'))
    with pytest.raises(UserMistake, match="task kuhn is a game"):
        models_of(scripted(said, "task=kuhn", "method=spiral"))
    with pytest.raises(UserMistake, match="task mix cannot"):
        models_of(scripted(said, "task=mix", "base=tiny"))


def test_one_of_different_agents_is_drawn_or_named() -> None:
    team = team_of(threads=1, agents={"ann": {}, "bob": {}})
    with running(team, setups=["single", "vote"]) as served:
        assert served.endpoint.models == ["single", "single/ann", "single/bob", "vote"]
        drawn = [ask(served, seed=seed, extra_body=DISCUSSION) for seed in range(12)]
        again = [ask(served, seed=seed, extra_body=DISCUSSION) for seed in range(12)]
        names = [reply.choices[0].discussion[0]["agent"] for reply in drawn]
        assert set(names) == {"ann", "bob"}
        assert [texts(reply) for reply in again] == [texts(reply) for reply in drawn]
        for seed, name in enumerate(names[:4]):
            named = ask(served, f"single/{name}", seed=seed)
            assert texts(named) == texts(drawn[seed])
    team.close()
