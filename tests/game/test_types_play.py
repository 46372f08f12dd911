"""Turns are named by place, failures stay in their discussion, and pay goes to whom it belongs."""

from __future__ import annotations

import ast
import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comas.game.agent import Agent, EpisodeRecord, TeamMember, derive_seed
from comas.game.play import GameContext, finished_of, play_all, settle_all, turn_rewards
from comas.objective.credit import grpo
from comas.tasks import pick
from comas.testing import (
    Scripted,
    check_host,
    check_method,
    check_task,
    check_wording,
    golden_script,
    scripted_context,
    scripted_team,
)
from comas.types import (
    Ask,
    Episode,
    Fit,
    HostFailure,
    Method,
    NoRoom,
    Question,
    Refused,
    Reply,
    Task,
)
from tests.support.games import game, one, turn

Q = Question(id="q", prompt="1 2 4 5 -> 7", answer="1 2 4")
R = Question(id="r", prompt="other")


class Slow(Scripted):
    """Answers after as many rounds of the loop as the table says for the policy."""

    def __init__(self, delays: Mapping[str, int]) -> None:
        super().__init__(lambda policy, role, prompt, seed: f"{policy} {prompt} {seed % 1000}")
        self.delays = delays

    async def ask(self, ask: Ask) -> Reply:
        for _ in range(self.delays[ask.policy]):
            await asyncio.sleep(0)
        return await super().ask(ask)


async def ask_all(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
    async with asyncio.TaskGroup() as group:
        said = [group.create_task(a.ask("solution", question.prompt)) for a in agents]
    first = said[0].result()
    await agents[1].ask("evaluation", "of it", about=first)
    return (await agents[0].ask("evaluation", "again", about=first)).text


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    code = "from comas.game.agent import derive_seed; print(derive_seed(3, 'a', 1))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "PYTHONHASHSEED": "5",
            "PYTHONPATH": str(Path(sys.modules["comas"].__file__ or "").parent.parent),
        },
    )
    assert int(elsewhere.stdout) == derive_seed(3, "a", 1)
    many = {
        derive_seed(*parts)
        for parts in [(3, "a", 1), (3, "a", 2), (3, "b", 1), (4, "a", 1), (3, "a1"), (3, "a", 1, 0)]
    }
    assert len(many) == 6
    assert all(0 <= s < 2**63 for s in many)


def test_turns_are_named_by_place_whoever_answers_first() -> None:
    def record(delays: Mapping[str, int]) -> list[tuple[str, str, str]]:
        host = Slow(delays)
        context = GameContext(game(ask_all), pick.task, [TeamMember(p, host, p) for p in delays], 0)
        (episode,) = asyncio.run(play_all(context, [Q], 4))
        return [(t.id, t.agent, t.text) for t in episode.turns]

    quick_last = record({"a": 5, "b": 2, "c": 0})
    quick_first = record({"a": 0, "b": 1, "c": 7})
    assert quick_last == quick_first
    assert [t[:2] for t in quick_last] == [
        ("4/q/0/solution0", "a"),
        ("4/q/0/solution0.evaluation0", "b"),
        ("4/q/0/solution0.evaluation1", "a"),
        ("4/q/0/solution1", "b"),
        ("4/q/0/solution2", "c"),
    ]


def test_roles_that_end_in_digits_name_other_turns_than_those_without() -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        roles = [*["step"] * 11, "step1", "step1", "step-", "step"]
        for role in roles:
            await agents[0].ask(role, "go")
        return "done"

    context, _ = scripted_context(
        game(play), pick.task, dict.fromkeys(["step", "step1", "step-"], "y")
    )
    (episode,) = asyncio.run(play_all(context, [Q], 0))
    names = {turn.id.removeprefix("0/q/0/") for turn in episode.turns}
    assert len(names) == len(episode.turns) == 15
    assert names >= {"step0", "step11", "step1-0", "step1-1", "step--0"}


def test_turns_sort_by_number_also_beyond_nine_and_with_odd_question_ids() -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(12):
                group.create_task(agents[0].ask("solution", "x"))

    context, _ = scripted_context(game(play), pick.task, {"solution": "y"})
    for name in ("q10", "1²1", "٣", ""):
        (episode,) = asyncio.run(play_all(context, [replace(Q, id=name)], "validation7"))
        assert [t.id.rsplit("solution", 1)[1] for t in episode.turns] == [str(i) for i in range(12)]


def test_samples_of_a_question_are_different_discussions_in_order() -> None:
    members, host = scripted_team(lambda policy, role, prompt, seed: str(seed))
    episodes = asyncio.run(
        play_all(GameContext(game(ask_all), pick.task, members, 0), [Q, R], 2, samples=3)
    )
    assert [e.id for e in episodes] == [f"2/{q}/{s}" for q in "qr" for s in range(3)]
    assert len({seed for *_, seed in host.asked}) == len(host.asked) == 6 * 6


def test_the_games_dice_belong_to_the_discussion() -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        drawn = [rng.random() for _ in range(3)]
        return (await agents[0].ask("solution", str(drawn))).text

    def prompts(questions: list[Question], step: int, seed: int = 0) -> dict[str, str]:
        members, _ = scripted_team({"solution": "x"})
        played = asyncio.run(
            play_all(GameContext(game(play), pick.task, members, seed), questions, step)
        )
        return {e.id: e.turns[0].prompt for e in played}

    both = prompts([Q, R], 0)
    assert prompts([R], 0)["0/r/0"] == both["0/r/0"] != both["0/q/0"]
    assert prompts([Q], 1)["1/q/0"] != both["0/q/0"] != prompts([Q], 0, seed=1)["0/q/0"]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_machine_that_fails_once_is_asked_again_one_that_fails_twice_is_recorded(
    grouped: bool,
) -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        if not grouped:
            return (await agents[0].ask("solution", question.prompt)).text
        async with asyncio.TaskGroup() as outer:  # as in games that ask several at once
            asked = outer.create_task(agents[0].ask("solution", question.prompt))
        return asked.result().text

    broken = {"1 2 4 5 -> 7": 1, "other": 9}

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        broken[prompt] -= 1
        if broken[prompt] >= 0:
            raise HostFailure("unplugged")
        return "back again"

    context, host = scripted_context(game(play), pick.task, script)
    once, twice = asyncio.run(play_all(context, [Q, R], 0))
    assert (once.error, once.answer, len(once.turns)) == (None, "back again", 1)
    assert (twice.error, twice.answer) == ("host script, turn 0/r/0/solution0: unplugged", None)
    assert [prompt for *_, prompt, _ in host.asked].count("other") == 2
    settle_all(context, [once, twice])
    assert turn_rewards([once, twice], context.members)["script"].keys() == {"a0"}
    assert len(turn_rewards([once, twice], context.members)["script"]["a0"]) == 1


@pytest.mark.parametrize("error", [Refused, NoRoom])
def test_what_a_host_refuses_is_not_played_again(error: type[HostFailure]) -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        return (await agents[0].ask("solution", question.prompt)).text

    def script(*_: Any) -> str:
        raise error("not that")

    context, host = scripted_context(game(play), pick.task, script)
    (episode,) = asyncio.run(play_all(context, [Q], 0))
    assert episode.error == f"host script, turn 0/{Q.id}/0/solution0: not that"
    assert len(host.asked) == 1


def test_a_bug_in_a_game_is_raised_even_beside_a_failing_machine() -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(agents[0].ask("solution", "fail"))
            group.create_task(agents[1].ask("solution", "bug"))

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        raise HostFailure("unplugged") if prompt == "fail" else ZeroDivisionError("bug")

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(play_all(scripted_context(game(play), pick.task, script)[0], [Q], 0))
    assert caught.group_contains(ZeroDivisionError)


def test_the_oldest_history_goes_first_and_a_prompt_that_never_fits_fails_its_discussion() -> None:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        history = ["first", "second", "third"]
        return (
            await agents[0].ask("solution", lambda h: " ".join(["ask", *h]), history=history)
        ).prompt

    for room, prompt in (
        (99, "ask first second third"),
        (16, "ask second third"),
        (9, "ask third"),
        (3, "ask"),
    ):
        context, _ = scripted_context(game(play), pick.task, {"solution": "x"}, room=room)
        (episode,) = asyncio.run(play_all(context, [Q], 0))
        assert episode.answer == prompt
        assert episode.turns[0].dropped == 4 - len(prompt.split())
    context, _ = scripted_context(game(play), pick.task, {"solution": "x"}, room=2)
    (episode,) = asyncio.run(play_all(context, [Q], 0))
    assert "do not fit" in str(episode.error)


def test_room_per_role_is_the_users_then_the_tasks_then_the_agents() -> None:
    host = Scripted({"solution": "x", "evaluation": "y", "scoring": "z"})
    seen = {}

    async def fits(policy: str, messages: Any, sampling: Any) -> Fit:
        seen[messages[-1]["content"]] = sampling.max_tokens
        return Fit(True)

    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> None:
        for role in ("solution", "evaluation", "scoring"):
            await agents[0].ask(role, role)

    host.fits = fits  # type: ignore[method-assign]
    task = replace(pick.task, max_tokens={"solution": 5, "evaluation": 6})
    asyncio.run(
        play_all(
            GameContext(
                game(play), task, [TeamMember("a", host, "a")], 0, max_tokens={"solution": 9}
            ),
            [Q],
            0,
        )
    )
    assert seen == {"solution": 9, "evaluation": 6, "scoring": 256}


def test_pay_goes_to_the_policy_but_not_for_frozen_agents_failed_discussions_or_nothing() -> None:
    host = Scripted({})
    members = [
        TeamMember("a", host, "p"),
        TeamMember("b", host, "p"),
        TeamMember("judge", host, "j", frozen=True),
    ]
    good = Episode(
        "1",
        Q,
        [
            turn("1", "a", 0.0),
            turn("2", "b", 1.0),
            turn("3", "a", None),
            turn("4", "judge", 1.0, "h/j"),
        ],
    )
    bad = Episode("2", Q, [turn("5", "a", 1.0)], error="unplugged")
    paid = turn_rewards([good, bad], members)
    assert list(paid) == ["h"]
    assert [(p.turn, p.reward, p.group) for p in paid["h"]["p"]] == [
        ("1", 0.0, "g"),
        ("2", 1.0, "g"),
    ]
    assert list(paid["h"]) == ["p"]
    for reward in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            turn_rewards([Episode("1", Q, [turn("1", "a", reward)])], members)


def test_frozen_agents_leave_nothing_to_learn_from_and_roles_limit_who_is_drawn() -> None:
    host = Scripted({"solution": "x"})
    members = [
        TeamMember("a", host, "p", frozen=True),
        TeamMember("b", host, "q", roles=("solution",)),
        TeamMember("c", host, "r"),
    ]
    asyncio.run(
        play_all(GameContext(game(ask_all_but_judging), pick.task, members, 0, keep=True), [Q], 0)
    )
    assert set(host.buffer) == {"q", "r"}
    table = EpisodeRecord(Episode("e", Q), 0, False)
    assert [Agent(m, table).takes("evaluation") for m in members] == [True, False, True]


async def ask_all_but_judging(
    question: Question, agents: list[Agent], rng: random.Random, task: Task
) -> None:
    for agent in agents:
        await agent.ask("solution", "x")


def test_listeners_hear_every_turn_when_it_is_complete() -> None:
    heard: list[str] = []
    members, _ = scripted_team({"solution": "x", "evaluation": "y"})
    context = GameContext(
        game(ask_all), pick.task, members, 0, on_turn=lambda t: heard.append(t.id)
    )
    (episode,) = asyncio.run(play_all(context, [Q], 0))
    assert sorted(heard) == sorted(t.id for t in episode.turns)


def test_settling_starts_from_nothing_and_skips_failed_discussions() -> None:
    pays_one = replace(
        game(ask_all), settle=lambda episodes, task: setattr(episodes[0].turns[0], "reward", 0.5)
    )
    good = Episode("1", Q, [turn("1", "a", 7.0), turn("2", "a", 7.0)])
    bad = Episode("2", R, [turn("3", "a", 7.0)], error="unplugged")
    settle_all(GameContext(pays_one, pick.task, [], 0), [good, bad])
    assert [t.reward for t in good.turns + bad.turns] == [0.5, None, None]
    assert good.turns[1].group is None


def peeking(where: str) -> Method:
    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        label = str(question.answer or question.meta) if where == "answer" else ""
        said = await agents[0].ask("solution", question.prompt + label)
        if where == "verify in play":
            task.verify(question, said.text)
        return said.text

    def settle(episodes: list[Episode], task: Task) -> None:
        for episode in episodes:
            verdict = (
                task.verify(episode.question, "x")
                if where == "verify in settle"
                else episode.question.answer
            )
            episode.turns[0].reward = float(verdict is not None and where != "nowhere")

    return replace(game(play), settle=settle)


@pytest.mark.parametrize("where", ["verify in play", "verify in settle"])
def test_a_label_free_method_that_asks_for_verdicts_is_stopped(where: str) -> None:
    with pytest.raises((PermissionError, ExceptionGroup)) as caught:
        check_method(peeking(where), pick.task, [Q, R], lambda *_: "x")
    assert isinstance(caught.value, PermissionError) or caught.group_contains(
        PermissionError, depth=1
    )


def test_a_label_free_method_sees_no_answers() -> None:
    context, host = scripted_context(peeking("answer"), pick.task, {"solution": "x"})
    (episode,) = asyncio.run(play_all(context, [replace(Q, meta={"target": 7})], 0))
    settle_all(context, [episode])
    assert [prompt for *_, prompt, _ in host.asked] == [Q.prompt + "{}"]
    assert episode.turns[0].reward == 0.0
    assert episode.question.answer == "1 2 4"  # the record keeps it


def pay(reward: float) -> Callable[..., None]:
    return lambda episodes, task: [setattr(e.turns[0], "reward", reward) for e in episodes]  # type: ignore[return-value]


def pay_alone(episodes: Sequence[Episode], task: Task) -> None:
    """Each turn is a group of its own."""
    for alone in (alone for episode in episodes for alone in episode.turns):
        alone.reward = 1.0
        alone.group = alone.id


async def silent(*_: Any) -> None:
    return None


async def wild(question: Question, agents: list[Agent], *_: Any) -> str:
    return (await agents[0].ask("solution", str(random.random()))).text


def spreadless(rows: Any, kl: Any) -> list[np.ndarray]:
    """Divides by a spread of 0 where all are paid alike."""
    with np.errstate(all="ignore"):
        rewards = np.array([row.reward for row in rows])
        values = (rewards - rewards.mean()) / rewards.std()
    return [np.where(row.mask_T, value, 0.0) for row, value in zip(rows, values, strict=True)]


FAULTS = {
    "credit: not finite": replace(game(one), advantage=spreadless),
    "credit: not an advantage per token": replace(
        game(one), advantage=lambda rows, kl: [np.zeros(1) for _ in rows]
    ),
    "credit: an advantage outside of the mask": replace(
        game(one), advantage=lambda rows, kl: [np.ones(row.mask_T.shape) for row in rows]
    ),
    "role 'solution' has a reward": replace(game(one), paid=("evaluation",)),
    "kl: evaluation has one": replace(game(one), kl={"evaluation": 0.5}),
    "asked nobody": game(silent),
    "no turn has a reward": replace(game(one), settle=lambda e, t: None),
    "another discussion": game(wild),
    "nobody would learn": replace(game(one), settle=pay_alone, credit=grpo),
    "has reward inf": replace(game(one), settle=pay(float("inf"))),
}


@pytest.mark.parametrize("said", FAULTS)
def test_check_method_finds_broken_methods(said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_method(FAULTS[said], pick.task, [Q, R], lambda *_: "x")


def test_check_method_passes_a_plain_one() -> None:
    check_method(game(one), pick.task, [Q, R], lambda *_: "x")


async def two_drafts(question: Question, agents: list[Agent], *_: Any) -> str:
    drafts = [await agents[0].ask("solution", f"{question.prompt} {i}") for i in range(2)]
    return drafts[0].text


def pay_what_can_be_read(episodes: Sequence[Episode], task: Task) -> None:
    for draft in (draft for episode in episodes for draft in episode.turns):
        draft.group = draft.id.split("/")[1]
        draft.reward = float(draft.text) if draft.text.isdigit() else None


def test_a_draft_that_the_script_made_unreadable_leaves_no_group_of_one() -> None:
    method = replace(game(two_drafts), settle=pay_what_can_be_read, credit=grpo)

    def second_of_q_unreadable(policy: str, role: str, prompt: str, seed: int) -> str:
        return "?" if prompt == f"{Q.prompt} 1" else "1"

    check_method(method, pick.task, [Q, R], second_of_q_unreadable)
    with pytest.raises(AssertionError, match="nobody would learn"):  # the second is never rewarded
        check_method(method, pick.task, [Q, R], lambda *ask: "1" if ask[2].endswith(" 0") else "?")


def odd(**changes: Any) -> Task:
    return replace(pick.task, **changes)


BAD_TASKS = {
    "lacks": odd(wording={"scoring": "score {question} {work}"}),
    "nobody fills": odd(wording={"solution": "{question} {peers}"}),
    "shares questions": odd(load=lambda split, limit=None: pick.load("test", limit=limit)),
    "extract": odd(extract=lambda q, t: 3),
    "is empty": odd(load=lambda split, limit=None: []),
    "answer or at meta": odd(extract=lambda q, t: q.answer),
    "verify says": odd(verify=lambda q, t: True),
    "an empty reply is right": odd(verify=lambda q, t: "right"),
    "limit": odd(load=lambda split, limit=None: pick.load(split)),
}


@pytest.mark.parametrize("said", BAD_TASKS)
def test_check_task_finds_broken_tasks(said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_task(BAD_TASKS[said])


def test_wording_of_methods_has_its_holes() -> None:
    from comas.game.prompts import SOLVING
    from comas.methods import comas

    for wording in (comas.WORDING, SOLVING):
        check_wording(replace(pick.task, wording=wording))


def test_hosts_keep_join_and_forget(untaught: Path) -> None:
    from comas.hosts.local import make_local_host
    from comas.learners.recipe import Recipe

    method = game(one)
    asyncio.run(check_host(Scripted({"solution": "x"}), "a0"))
    local = make_local_host("home", {"a0": str(untaught)}, method=method, recipe=Recipe(1e-2))
    asyncio.run(check_host(local, "a0"))
    local.close()


class Sieve(Scripted):
    """A host with one fault."""

    fault = ""

    async def ask(self, ask: Ask) -> Reply:
        said = await super().ask(replace(ask, keep=ask.keep or self.fault == "although keep"))
        return replace(said, text=said.text + ask.turn) if self.fault == "another text" else said

    async def learn(self, payoffs: Any, lr_scale: float) -> Any:
        if self.fault == "unknown turn":
            return {}, {}
        kept = {p: set(turns) for p, turns in self.buffer.items()}
        answer = await super().learn(payoffs, lr_scale)
        if self.fault == "after learning":
            self.buffer = kept
        if self.fault == "after one step":
            self.versions.clear()
        return answer

    async def load(self, path: Path) -> None:
        if self.fault != "what was saved":
            await super().load(path)


@pytest.mark.parametrize(
    "fault",
    [
        "another text",
        "unknown turn",
        "although keep",
        "after learning",
        "after one step",
        "what was saved",
    ],
)
def test_check_host_finds_broken_hosts(fault: str) -> None:
    host = Sieve({"solution": "x"})
    host.fault = fault
    with pytest.raises(AssertionError, match=fault):
        asyncio.run(check_host(host, "a0"))


def test_tables_speak_per_policy_and_in_turn_and_not_for_unknown_roles() -> None:
    host = Scripted({"solution": ["one", "two"], "a1/solution": "mine"})
    said = [host.script(p, "solution", "", 0) for p in ("a0", "a0", "a1", "a0")]
    assert said == ["one", "two", "mine", "two"]
    with pytest.raises(KeyError, match="scoring"):
        host.script("a0", "scoring", "", 0)


def test_testing_needs_no_test_runner_and_no_torch_to_import() -> None:
    tree = ast.parse(Path(sys.modules["comas.testing"].__file__ or "").read_text(encoding="utf-8"))
    code = (
        "import sys, comas.testing; sys.exit(bool({'torch', 'pytest', 'hypothesis'} &"
        " set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not any(
        "pytest" in ast.dump(n)
        for n in ast.walk(tree)
        if isinstance(n, ast.Import | ast.ImportFrom)
    )


def labels_within(thing: object, depth: int = 6, seen: set[int] | None = None) -> bool:
    """Whether the label can be reached from a thing by attributes and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen or depth == 0:
        return False
    seen.add(id(thing))
    if isinstance(thing, str):
        return thing == Q.answer
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set):
        parts = list(thing)
    else:
        parts = [*getattr(thing, "__dict__", {}).values()]
        parts += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return any(labels_within(part, depth - 1, seen) for part in parts)


@pytest.mark.parametrize("supervised", [False, True])
def test_no_label_is_in_reach_of_a_game_that_is_not_supervised(supervised: bool) -> None:
    reached: list[bool] = []

    async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
        turn = await agents[0].ask("solution", question.prompt)
        reached.append(any(map(labels_within, (question, agents, turn))))
        return turn.text

    method = game(play, supervised=supervised)
    context, _ = scripted_context(method, pick.task, {"solution": "so"})
    (episode,) = asyncio.run(play_all(context, [Q], 1))
    assert reached == [supervised]
    assert episode.question == Q
    assert [turn.text for turn in episode.turns] == ["so"]


def test_settlements_get_games_in_the_order_of_their_ids() -> None:
    context, _ = scripted_context(game(one), pick.task, golden_script)
    episodes = [Episode(f"0/{name}/0", Q) for name in "cab"]
    assert [episode.id for episode in finished_of(context, episodes)] == ["0/a/0", "0/b/0", "0/c/0"]


def test_a_round_that_is_given_counts_also_where_it_is_the_first() -> None:
    record = EpisodeRecord(Episode("0/q/0", Question(id="q", prompt="?")), 0, False)
    agent = Agent(TeamMember("a", Scripted({"solution": "x"}), "a"), record)

    async def rounds() -> list[int]:
        late = await agent.ask("solution", "?", round=2)
        about = [await agent.ask("solution", "?", about=late, round=r) for r in (None, 0, 1)]
        return [turn.round for turn in (late, *about)]

    assert asyncio.run(rounds()) == [2, 2, 0, 1]
