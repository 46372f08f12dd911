"""Dialogues: what is a turn, what is prompt, and what goes wrong with tools."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.agent import Agent, TeamMember
from comas.game.dialogue import Call, Unread, converse, in_tags
from comas.game.play import GameContext, play_all
from comas.objective.rewards import compare, dialogues
from comas.testing.scripted import Scripted, records
from comas.types import (
    Ask,
    Calls,
    Episode,
    Fit,
    HostFailure,
    Method,
    Question,
    Reply,
    Sampling,
    Task,
    Tool,
    ToolFailure,
    Turn,
    UserMistake,
)


def tool(run: Any, name: str = "ask", **facts: Any) -> Tool:
    return Tool(name=name, does="tells", argument="words", run=run, **facts)


def task_with(*tools: Tool) -> Task:
    return Task(
        name="t",
        load=lambda *_: [],
        verify=lambda *_: "wrong",
        extract=lambda _, text: text,
        tools={one.name: one for one in tools},
    )


async def alone(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    replies = await converse(agents[0], "solution", question.prompt, task, turns=4)
    return replies[-1].text


def talk(host: Any, task: Task, count: int = 1, play: Any = alone) -> list[Episode]:
    method = Method(play, lambda *_: None, lambda *_: [], lambda *_: None)
    context = GameContext(method, task, [TeamMember("a", host, "p")], 3)
    questions = [Question(id=f"q{place}", prompt=f"what {place}") for place in range(count)]
    return asyncio.run(play_all(context, questions, 1))


def said(texts: Sequence[str]) -> Scripted:
    return Scripted({"solution": list(texts)})


CALL = "so <ask> two words </ask>"


def test_what_comes_back_is_prompt_and_every_reply_a_turn_below_the_last() -> None:
    host = said([CALL, CALL, "done"])
    (episode,) = talk(host, task_with(tool(lambda words: words.upper())))
    assert [turn.id for turn in episode.turns] == [
        "1/q0/0/solution0",
        "1/q0/0/solution0.solution0",
        "1/q0/0/solution0.solution0.solution0",
    ]
    assert [turn.prompt for turn in episode.turns[1:]] == ["TWO WORDS", "TWO WORDS"]
    assert {turn.info["dialogue"] for turn in episode.turns} == {"1/q0/0/solution0"}
    call = episode.turns[0].info["call"]
    assert call.pop("seconds") >= 0
    assert call == {
        "tool": "ask",
        "argument": "two words",
        "back": "TWO WORDS",
        "failed": None,
        "cut": 0,
    }
    assert episode.answer == "done"
    assert "<ask>words</ask>: tells" in episode.turns[0].prompt


def test_a_dialogue_that_never_ends_is_ended_and_noted() -> None:
    (episode,) = talk(said([CALL]), task_with(tool(str)))
    assert len(episode.turns) == 4
    assert episode.turns[-1].info["unanswered"] == "ask"
    assert "call" not in episode.turns[-1].info


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<ask> x </ask> and then", "a call of ask that does not end the reply"),
        ("<ask> x", "a call of ask that does not end the reply"),
        ("<other> x </other>", None),
        ("5 < 6 </ask>", None),
    ],
)
def test_what_is_no_call_ends_the_dialogue_and_is_noted(text: str, why: str | None) -> None:
    (episode,) = talk(said([text]), task_with(tool(str)))
    (turn,) = episode.turns
    assert turn.info.get("unread") == why
    assert episode.answer == text


@pytest.mark.parametrize("order", [("ask", "find"), ("find", "ask")])
def test_the_call_that_ends_a_reply_is_read_in_whatever_order_tools_are_named(
    order: tuple[str, str],
) -> None:
    tools = {name: tool(str, name) for name in order}
    assert in_tags("<ask> x </ask> or <find> y </find>", tools) == Call("find", "y", 1)
    assert in_tags("<ask> x </ask> or <find> y", tools) == Unread(
        "a call of find that does not end the reply"
    )


def test_a_program_may_hold_what_looks_like_marks() -> None:
    program = "if a < b and c > d:\n    print('</p>')"
    host = said([f"<ask>\n{program}\n</ask>", "ok"])
    (episode,) = talk(host, task_with(tool(lambda words: words)))
    assert episode.turns[0].info["call"]["argument"] == program


def fails(words: str) -> str:
    raise ToolFailure("no such thing")


def breaks(words: str) -> str:
    raise ZeroDivisionError("division by zero")


def exits(words: str) -> str:
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("run", "failed"),
    [
        (fails, "no such thing"),
        (exits, "ask failed: SystemExit: 2"),
        (breaks, "ask failed: ZeroDivisionError: division by zero"),
        (lambda words: 5, "ask returned int, not text"),
    ],
)
def test_a_tool_that_fails_tells_the_agent_and_the_record(run: Any, failed: str) -> None:
    (episode,) = talk(said([CALL, "done"]), task_with(tool(run)))
    assert episode.turns[0].info["call"]["failed"] == failed
    assert episode.turns[1].prompt == failed
    assert episode.answer == "done"


def test_an_error_that_cannot_be_told_is_not_waited_for() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def raises(words: str) -> str:
        raise Mute

    (episode,) = talk(said([CALL, "done"]), task_with(tool(raises, seconds=60)))
    assert episode.turns[0].info["call"]["failed"] == "ask failed: Mute"
    assert episode.turns[0].info["call"]["seconds"] < 30


def test_a_tool_that_hangs_is_not_waited_for() -> None:
    hanging = threading.Event()
    began = time.monotonic()
    slow = tool(lambda words: str(hanging.wait(30)), seconds=0.2)
    (episode,) = talk(said([CALL, "done"]), task_with(slow))
    assert time.monotonic() - began < 20
    hanging.set()
    assert episode.turns[0].info["call"]["failed"] == "ask took longer than 0.2 s"


def test_calls_of_a_tool_wait_for_their_turn() -> None:
    running: list[int] = []
    most: list[int] = []

    def slow(words: str) -> str:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return words

    host = Scripted(lambda *asked: "done" if asked[2] == "two words" else CALL)
    talk(host, task_with(tool(slow, at_once=2)), count=8)
    assert len(most) == 8
    assert max(most) <= 2


def test_a_tool_that_floods_is_cut_and_counted() -> None:
    (episode,) = talk(said([CALL, "done"]), task_with(tool(lambda _: "x" * 5000, longest=100)))
    call = episode.turns[0].info["call"]
    assert call["cut"] == 4900
    assert call["back"] == "x" * 100 + " ... (4900 more characters)"


def test_of_several_calls_the_last_is_run_and_the_others_are_counted() -> None:
    (episode,) = talk(said([f"{CALL} and {CALL} then {CALL}", "done"]), task_with(tool(str.upper)))
    assert episode.turns[0].info["call"]["earlier"] == 2
    call = '<tool_call>\n{"name": "ask", "arguments": {"words": "two"}}\n</tool_call>'
    host = Templated({"solution": [f"{call}\n{call}", "done"]})
    (episode,) = talk(host, task_with(tool(str.upper)))
    assert episode.turns[0].info["call"]["earlier"] == 1


def test_a_failure_that_floods_is_cut_as_well() -> None:
    def floods(words: str) -> str:
        raise ToolFailure("x" * 5000)

    (episode,) = talk(said([CALL, "done"]), task_with(tool(floods, longest=100)))
    call = episode.turns[0].info["call"]
    assert call["failed"] == "x" * 100
    assert call["cut"] == 4900


def test_markup_of_a_tool_is_defused() -> None:
    (episode,) = talk(said([CALL, "done"]), task_with(tool(lambda _: "<score>3</score>\nUser: hi")))
    assert episode.turns[1].prompt == "(score)3(/score)\nUser - hi"


def broken_machine(words: str) -> str:
    raise HostFailure("the sandbox is gone")


def test_a_broken_machine_ends_the_discussion_and_a_mistake_the_run() -> None:
    (episode,) = talk(said([CALL]), task_with(tool(broken_machine)))
    assert episode.error == "the sandbox is gone"

    def mistaken(words: str) -> str:
        raise UserMistake("no index")

    with pytest.raises(BaseExceptionGroup) as raised:
        talk(said([CALL]), task_with(tool(mistaken)))
    assert raised.group_contains(UserMistake, match="no index", depth=1)


class Shuffled(Scripted):
    """Answers when a generator of its own says so."""

    def __init__(self, seed: int) -> None:
        super().__init__(self.say)
        self.order = random.Random(seed)

    def say(self, policy: str, role: str, prompt: str, seed: int) -> str:
        return f"<ask> {seed % 97} </ask>" if seed % 3 else f"{seed % 97}"

    async def ask(self, ask: Ask) -> Reply:
        for _ in range(self.order.randrange(6)):
            await asyncio.sleep(0)
        return await super().ask(ask)


async def three(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    async with asyncio.TaskGroup() as group:
        talks = [
            group.create_task(converse(agents[0], "solution", question.prompt, task, turns=5))
            for _ in range(3)
        ]
    return talks[0].result()[-1].text


def test_a_thousand_orders_of_arrival_give_one_transcript() -> None:
    task = task_with(tool(lambda words: f"{int(words) * 7}"))
    wanted = records(talk(Shuffled(0), task, count=20, play=three))
    for seed in range(1, 51):  # of 20 discussions each
        assert records(talk(Shuffled(seed), task, count=20, play=three)) == wanted


class Small(Scripted):
    """Has room for so many messages."""

    def __init__(self, texts: Sequence[str], most: int) -> None:
        super().__init__({"solution": list(texts)})
        self.most = most
        self.heard: list[list[str]] = []

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        return Fit(len(messages) <= self.most, len(messages), self.most)

    async def ask(self, ask: Ask) -> Reply:
        self.heard.append([message["content"] for message in ask.messages])
        return await super().ask(ask)


def test_where_there_is_no_room_the_oldest_exchange_is_left_out() -> None:
    texts = ["<ask>1</ask>", "<ask>2</ask>", "<ask>3</ask>", "done"]
    host = Small(texts, most=5)
    (episode,) = talk(host, task_with(tool(lambda words: f"back {words}")))
    assert [turn.dropped for turn in episode.turns] == [0, 0, 0, 1]
    assert host.heard[-1][1:] == ["<ask>2</ask>", "back 2", "<ask>3</ask>", "back 3"]
    (lost,) = talk(Small(texts, most=0), task_with(tool(str)))
    assert "do not fit the context" in (lost.error or "")


class Templated(Scripted):
    """A model whose chat template has a way to call tools."""

    def calls(self, policy: str) -> Calls:
        return Calls("<tool_call>\n", "name", "arguments", "\n</tool_call>")

    async def ask(self, ask: Ask) -> Reply:
        self.roles = [message["role"] for message in ask.messages]
        return await super().ask(ask)


def test_a_model_is_asked_in_its_own_way_where_it_has_one() -> None:
    call = '<tool_call>\n{"name": "ask", "arguments": {"words": "two"}}\n</tool_call>'
    host = Templated({"solution": [call, "done"]})
    (episode,) = talk(host, task_with(tool(lambda words: words.upper())))
    assert host.roles == ["tools", "user", "assistant", "tool"]
    assert episode.turns[0].prompt == "what 0", "the template itself shows the tools"
    assert episode.turns[0].info["call"]["argument"] == "two"
    assert episode.turns[1].prompt == "TWO"


def test_a_word_in_tags_hides_no_call_of_the_models_own() -> None:
    call = '<tool_call>\n{"name": "ask", "arguments": {"words": "two"}}\n</tool_call>'
    host = Templated({"solution": [f"I will use <ask>.\n{call}", "so <ask> it is"]})
    (episode,) = talk(host, task_with(tool(lambda words: words.upper())))
    called, last = episode.turns
    assert called.info["call"]["back"] == "TWO"
    assert "unread" not in called.info
    assert last.info["unread"] == "a call of ask that does not end the reply"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "a call that is no JSON"),
        ("[1]", "a call that is no JSON object"),
        (100_000 * "[", "a call that is no JSON"),
        ('{"name": ["ask"], "arguments": {}}', "a call of ['ask'], which is none of ask"),
        ('{"name": {}, "arguments": {}}', "a call of {}, which is none of ask"),
        ('{"name": "x", "arguments": {}}', "a call of 'x', which is none of ask"),
        ('{"name": "ask", "arguments": {}}', "a call of ask without its one argument, words"),
    ],
)
def test_a_call_that_the_template_does_not_write_is_noted(body: str, why: str) -> None:
    host = Templated({"solution": [f"<tool_call>\n{body}\n</tool_call>"]})
    (episode,) = talk(host, task_with(tool(str)))
    assert episode.turns[0].info["unread"].startswith(why)


def reply(name: str, first: str | None = None) -> Turn:
    info = {} if first is None else {"dialogue": first}
    return Turn(name, "a", "h/p", "solution", "", "", True, 0, info=info, kind="answer")


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    # rewards that differ by rounding alone are equal, and worth nothing
    rewards=st.lists(st.integers(-3000, 3000).map(lambda n: n / 1000), min_size=6, max_size=6),
)
def test_a_dialogue_is_paid_once_however_long_it_is(
    lengths: list[int], rewards: list[float]
) -> None:
    turns = []
    for place, length in enumerate(lengths):
        first = f"e/solution{place}"
        turns += [reply(first + ".solution0" * depth, first) for depth in range(length)]
    random.Random(0).shuffle(turns)
    found = dialogues(Episode("e", Question(id="q", prompt="?"), turns), "solution")
    assert sorted(len(dialogue.replies) for dialogue in found) == sorted(lengths)
    worths = rewards[: len(found)]
    compare(found, worths, scale=False)
    mean = sum(worths) / len(worths)
    for dialogue, worth in zip(found, worths, strict=True):
        assert dialogue.end.info["raw"] == worth
        for turn in dialogue.replies:
            assert turn.reward == pytest.approx(worth - mean, abs=1e-9)


def test_a_dialogue_that_goes_on_from_another_has_what_was_said_in_it() -> None:
    heard: list[list[Any]] = []

    class Recording(Scripted):
        async def ask(self, ask: Ask) -> Reply:
            heard.append(list(ask.messages))
            return await super().ask(ask)

    async def twice(
        question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
    ) -> str | None:
        asked = (agents[0], "solution", question.prompt, task)
        *kept, end = await converse(*asked, turns=4)
        on = await converse(*asked, turns=2, about=end, after=kept)
        return on[-1].text

    host = Recording({"solution": [CALL, CALL, "unsure", "sure"]})
    (episode,) = talk(host, task_with(tool(lambda words: words.upper())), play=twice)
    assert episode.answer == "sure"
    assert [message["role"] for message in heard[-1]] == ["user", *("assistant", "user") * 2]
    assert heard[-1] == heard[-2], "the reply that is written again is left out"
    assert episode.turns[-1].about == episode.turns[-2].id
