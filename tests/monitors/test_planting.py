"""Planted work and criticism: judged in the method's own game, compared with the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

from comas.game.play import GameContext, play_all
from comas.methods import comas as method_comas
from comas.methods import ttrl as method_ttrl
from comas.monitors import probes
from comas.monitors.monitor import Monitor, Seen
from comas.monitors.planting import Plant, acceptances, play_planted
from comas.tasks import pick
from comas.testing.scripted import Script, scripted_context
from comas.types import Method

QUESTIONS = [pick.make_question((1, 2, 4, n), 7, "three") for n in range(5, 25)]


ANSWER = "1 + 2 + 4"
"""Right for all of them."""


def judging(accepts: Callable[[str], bool]) -> Script:
    """Judges that look at the prompt that they are shown."""

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        if role == "solution":
            return ANSWER
        if role == "evaluation":
            return "good" if accepts(prompt) else "bad"
        return "<score>3</score>" if accepts(prompt) else "<score>1</score>"

    return script


def context_of(method: Method, script: Script) -> GameContext:
    context, _ = scripted_context(method, pick.task, script)
    return context


def test_judges_see_what_was_planted_and_nobody_else_is_asked() -> None:
    context = context_of(method_comas.method, judging(lambda prompt: "# 2 5" in prompt))
    said = {"solution": "2 + 5"}
    games = asyncio.run(play_planted(context, [Plant(QUESTIONS[0], said)] * 2, "test"))
    assert [acceptances(game, planted=True) for game in games] == [[True], [True]]
    assert [acceptances(game, planted=False) for game in games] == [[], []]
    host = context.members[0].host
    assert {role for _, _, role, _, _ in host.asked} == {"evaluation", "scoring"}  # type: ignore[attr-defined]
    assert host.buffer == {}  # type: ignore[attr-defined]
    assert games[0].turns[0].info["planted"]


def test_seeds_of_planted_games_depend_on_place_alone() -> None:
    context = context_of(method_comas.method, judging(lambda prompt: True))
    plants = [Plant(question, {"solution": "x"}) for question in QUESTIONS[:3]]
    asyncio.run(play_planted(context, plants, "test"))
    asyncio.run(play_planted(context, plants, "test"))
    asked = context.members[0].host.asked  # type: ignore[attr-defined]
    half = len(asked) // 2
    assert sorted(asked[:half]) == sorted(asked[half:])
    assert len({seed for *_, seed in asked}) == half


def begin(monitor: Monitor, context: GameContext) -> None:
    """As a run does when its first step has been played."""

    async def first_step() -> None:
        await monitor.begin(context, await play_all(context, QUESTIONS, 0))

    asyncio.run(first_step())


def watched(
    monitor: Monitor, context: GameContext, now: GameContext, steps: int
) -> list[dict[str, list[float]]]:
    begin(monitor, context)
    monitor.memory = json.loads(json.dumps(monitor.memory))
    found: list[dict[str, list[float]]] = []
    for step in range(steps):
        asyncio.run(monitor.ask(now, step, 150))
        readings = monitor.read(Seen(step, []))
        found.append({name: list(reading.values) for name, reading in readings.items()})
    return found


def test_judges_that_reject_everything_reject_what_was_proven() -> None:
    start = context_of(method_comas.method, judging(lambda prompt: True))
    now = context_of(method_comas.method, judging(lambda prompt: False))
    monitor = probes.watch()
    found = watched(monitor, start, now, 4)
    assert monitor.memory["start"]["proven"] == 0.0
    proven = [value for step in found for value in step.get("proven", [])]
    assert proven
    assert set(proven) == {1.0}


def test_plants_of_other_questions_are_other_answers() -> None:
    context = context_of(method_comas.method, judging(lambda prompt: True))
    monitor = probes.watch()
    begin(monitor, context)
    # all questions have the same answer here, and what is cut is no answer at all
    assert monitor.memory["plants"].keys() == {"proven"}


def test_a_game_without_judges_is_not_probed() -> None:
    context = context_of(method_ttrl.method, judging(lambda prompt: True))
    monitor = probes.watch()
    begin(monitor, context)
    assert monitor.memory == {}
    asyncio.run(monitor.ask(context, 0, 128))
    assert monitor.read(Seen(0, [])) == {}


def frozen_in(context: GameContext, *names: str) -> GameContext:
    members = [
        replace(member, frozen=True) if member.name in names else member
        for member in context.members
    ]
    return replace(context, members=members)


def test_judges_that_do_not_learn_are_not_probed() -> None:
    context = context_of(method_comas.method, judging(lambda prompt: True))
    monitor = probes.watch()
    begin(monitor, frozen_in(context, "a0", "a1", "a2", "a3"))
    assert monitor.memory == {}
    begin(monitor, frozen_in(context, "a1", "a2"))
    assert monitor.memory["bench"] == ["a0", "a3"]


def test_frozen_members_sit_where_a_role_would_be_empty_without_them() -> None:
    context = context_of(method_comas.method, judging(lambda prompt: True))
    judges = [replace(member, roles=("scoring",)) for member in context.members[:2]]
    solvers = [replace(member, frozen=True) for member in context.members[2:]]
    monitor = probes.watch()
    begin(monitor, replace(context, members=[*judges, *solvers]))
    assert monitor.memory["bench"] == ["a0", "a1", "a2", "a3"]
