"""Answers to a question and to the same question rephrased: habits of places against what is
known, by scripts, by hand and by simulation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from comas.game.play import GameContext, play_all
from comas.methods import comas as method_comas
from comas.methods import ttrl as method_ttrl
from comas.monitors import habits
from comas.monitors.evidence import Trial
from comas.monitors.habits import HABITUAL, SHARE, Habits, come_apart
from comas.monitors.monitor import CannotWatch, Reading, Seen
from comas.tasks import pick
from comas.testing.scripted import Script, Scripted, scripted_context
from comas.training.watching import ALPHA
from comas.types import Episode, Method, Question, Turn

QUESTIONS = [pick.make_question((1, 2, 4, n), 7, "three") for n in range(5, 15)]


def offered(prompt: str) -> list[str]:
    """The numbers of the puzzle in a prompt, in its order."""
    found = re.search(r"((?:\d+ )+)->", prompt)
    assert found is not None
    return found[1].split()


def knowing(policy: str, role: str, prompt: str, seed: int) -> str:
    """Finds the numbers that add up."""
    return " + ".join(number for number in offered(prompt) if number in ("1", "2", "4"))


def choosing_the_first(policy: str, role: str, prompt: str, seed: int) -> str:
    """A habit of places."""
    return " + ".join(offered(prompt)[:3])


def choosing_the_greatest(policy: str, role: str, prompt: str, seed: int) -> str:
    """A habit that another order does not touch."""
    return " + ".join(sorted(offered(prompt), key=int)[1:])


def tossing(policy: str, role: str, prompt: str, seed: int) -> str:
    """One of two answers, whatever is asked."""
    return "1 + 2" if seed % 2 else "2 + 4"


def each_its_own(policy: str, role: str, prompt: str, seed: int) -> str:
    """Every member has its answer, to whatever is asked."""
    return f"1 + {policy.removeprefix('a')}"


def unreadable(policy: str, role: str, prompt: str, seed: int) -> str:
    """Says nothing that could be read."""
    return "well"


def context_of(script: Script, method: Method = method_ttrl.method, agents: int = 2) -> GameContext:
    context, _ = scripted_context(method, pick.task, script, agents=agents)
    return context


def host_of(context: GameContext) -> Scripted:
    host = context.members[0].host
    assert isinstance(host, Scripted)
    return host


def begun(context: GameContext) -> Habits:
    """As a run does when its first step has been played."""
    monitor = habits.watch()
    assert isinstance(monitor, Habits)

    async def first_step() -> None:
        await monitor.begin(context, await play_all(context, QUESTIONS, 0))

    asyncio.run(first_step())
    monitor.memory = json.loads(json.dumps(monitor.memory))
    return monitor


def values(monitor: Habits, context: GameContext, step: int) -> list[float]:
    asyncio.run(monitor.ask(context, step, len(QUESTIONS)))
    readings = monitor.read(Seen(step, []))
    return list(readings["wording"].values) if readings else []


@pytest.mark.parametrize(
    ("script", "start"),
    [
        (knowing, 0.0),
        (choosing_the_first, 1.0),
        (choosing_the_greatest, 0.0),
        (each_its_own, 0.0),
        (unreadable, 0.0),
    ],
)
def test_a_habit_of_places_comes_apart_and_what_is_known_does_not(
    script: Script, start: float
) -> None:
    assert begun(context_of(script)).memory["start"] == start


def test_a_team_that_falls_into_a_habit_is_seen_at_once() -> None:
    monitor = begun(context_of(knowing))
    assert set(values(monitor, context_of(knowing), 1)) == {0.0}
    assert set(values(monitor, context_of(choosing_the_first), 2)) == {1.0}


def turns(*answers: str | None) -> list[Turn]:
    said = [
        Turn(f"{i}", "a0", "home/a0", "solution", "", "", True, 0, kind="answer")
        for i in range(len(answers))
    ]
    for turn, answer in zip(said, answers, strict=True):
        turn.info["answer"] = answer
    return said


@pytest.mark.parametrize(
    ("plain", "rephrased", "value"),
    [
        ("xx", "yy", 1.0),
        ("xx", "xx", 0.0),
        ("xy", "xy", 0.0),
        ("xy", "yx", 0.0),
        ("xx", "xy", 0.0),
        ("xx", "yz", 0.5),
        ("xxxx", "yyyx", (1 + 1 / 2) / 2 - 1 / 4),
    ],
)
def test_agreement_within_wordings_against_agreement_across(
    plain: str, rephrased: str, value: float
) -> None:
    found = come_apart(turns(*plain), turns(*rephrased), pick.task)
    assert found == pytest.approx(value)
    assert come_apart(turns(*rephrased), turns(*plain), pick.task) == pytest.approx(value)


def test_what_cannot_be_read_agrees_with_nothing() -> None:
    assert come_apart(turns(None, None), turns(None, None), pick.task) == 0.0
    assert come_apart(turns(None, None), turns("x", "x"), pick.task) == 0.5


def test_tosses_of_a_coin_come_apart_by_an_eighth() -> None:
    """All sixteen ways in which two answers to two wordings can fall, and as many games as that."""
    ways = itertools.product("xy", repeat=4)
    mean = sum(come_apart(turns(a, b), turns(c, d), pick.task) for a, b, c, d in ways) / 16
    assert mean == 1 / 8
    monitor = begun(context_of(tossing))
    found = [value for step in range(400) for value in values(monitor, context_of(tossing), step)]
    assert sum(found) / len(found) == pytest.approx(1 / 8, abs=4 * 0.33 / math.sqrt(len(found)))


def test_both_wordings_are_put_to_the_same_members_who_learn_nothing_from_it() -> None:
    context = context_of(knowing, agents=4)
    monitor = begun(context)
    asked = context_of(knowing, agents=4)
    assert values(monitor, asked, 3)
    host = host_of(asked)
    assert {role for _, _, role, _, _ in host.asked} == {"solution"}
    assert host.buffer == {}
    by_game: dict[str, list[tuple[str, str]]] = {}
    for turn, policy, _, prompt, _ in sorted(host.asked):
        by_game.setdefault(turn.rpartition("/")[0], []).append((policy, prompt))
    for said in by_game.values():
        policies = [policy for policy, _ in said]
        assert policies[:2] == policies[2:]
        assert len(set(policies)) == 2
        prompts = [prompt for _, prompt in said]
        assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
        assert sorted(offered(prompts[0])) == sorted(offered(prompts[2]))


def test_what_is_asked_follows_from_seed_and_step() -> None:
    monitor = begun(context_of(knowing))

    def asked(step: int) -> list[tuple[str, str, str, str, int]]:
        context = context_of(knowing)
        values(monitor, context, step)
        return sorted(host_of(context).asked)

    assert asked(3) == asked(3)
    assert asked(3) != asked(4)


def test_labels_are_shown_to_nobody() -> None:
    seen: list[Question] = []

    def rephrase(question: Question, rng: random.Random) -> Question | None:
        seen.append(question)
        return pick.rephrase(question, rng)

    labelled = replace(method_ttrl.method, supervised=True)
    context = context_of(knowing, labelled)
    context = replace(context, task=replace(pick.task, rephrase=rephrase))
    monitor = begun(context)
    values(monitor, context, 1)
    assert seen
    assert all(question.answer is None and not question.meta for question in seen)
    assert {*monitor.memory["questions"][0]} == {"id", "prompt", "kind"}


def test_members_who_cannot_change_are_not_asked() -> None:
    context = context_of(knowing, agents=3)
    first, second, third = context.members
    frozen = replace(first, frozen=True)
    judge = replace(second, roles=("scoring",))
    assert begun(replace(context, members=[frozen, judge, third])).memory["bench"] == ["a2"]
    nobody = replace(context, members=[frozen, replace(third, frozen=True)])
    monitor = begun(nobody)
    assert monitor.memory == {}
    assert values(monitor, nobody, 1) == []


def test_a_step_is_asked_for_a_twentieth_of_its_tokens() -> None:
    """The replies of a script are counted in words, those of a right answer are six."""
    context = context_of(choosing_the_first, method_comas.method)
    episodes = asyncio.run(play_all(context, QUESTIONS * 20, 0, samples=8))
    monitor = habits.watch()
    asyncio.run(monitor.begin(context, episodes))
    spent = sum(turn.tokens for game in episodes for turn in game.turns)
    assert monitor.memory["rate"] == pytest.approx(SHARE * spent / (4 * 6))
    assert begun(context).memory["rate"] >= 1


def test_a_task_that_cannot_rephrase_is_told_in_a_line() -> None:
    context = context_of(knowing)
    with pytest.raises(CannotWatch, match="task pick"):
        begun(replace(context, task=replace(pick.task, rephrase=None)))
    with pytest.raises(CannotWatch, match="first step's questions"):
        begun(replace(context, task=replace(pick.task, rephrase=lambda question, rng: None)))


def test_questions_that_agents_pose_are_not_asked() -> None:
    posed = Episode("0/q/0", QUESTIONS[0], turns("1 2 4"))
    posed.turns[0].info["posed"] = "1 2 4 5 -> 7"
    monitor = habits.watch()
    asyncio.run(monitor.begin(context_of(knowing), [posed]))
    assert monitor.memory == {}


def alarms(rng: np.random.Generator, start: float, mean: float, steps: int) -> int | None:
    """The step, counted from 0, in which a run is alarmed whose values have this mean: half of what
    is not 0 is one half, as from two answers to a wording.
    """
    trial = Trial(HABITUAL, ALPHA)
    half = 2 * mean / 3
    for step in range(steps):
        drawn = rng.choice([0.0, 0.5, 1.0], size=4, p=[1 - 2 * half, half, half])
        if trial.hear(Reading([float(value) for value in drawn], start)):
            return step
    return None


def test_the_error_of_a_whole_run_is_below_alpha_at_the_margin() -> None:
    rng = np.random.default_rng(5)
    runs = 200
    start = 0.15
    found = [alarms(rng, start, start + HABITUAL.margin, 120) for _ in range(runs)]
    wrong = sum(step is not None for step in found)
    assert wrong / runs <= ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_a_habit_that_most_share_is_found_within_a_few_steps() -> None:
    rng = np.random.default_rng(6)
    found = [alarms(rng, 0.15, 0.7, 60) for _ in range(100)]
    assert all(step is not None and step <= 30 for step in found)
