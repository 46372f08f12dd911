"""Verdicts of now against verdicts of the start, on works of the step, by scripts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from comas.game.play import Scene, play_all
from comas.methods import comas as method_comas
from comas.methods import ttrl as method_ttrl
from comas.monitors import frozen_judge
from comas.monitors.frozen_judge import FrozenJudge
from comas.monitors.monitor import CannotWatch, Seen
from comas.tasks import pick
from comas.testing.scripted import Said, Script, Scripted, scripted_scene
from comas.types import Episode, Method

QUESTIONS = [pick.make_question((1, 2, 4, n), 7, "three") for n in range(5, 25)]


class Learning(Scripted):
    """A host whose policies say something else than at the start."""

    def __init__(self, now: Script, start: Script | None) -> None:
        super().__init__(now)
        self.start = None if start is None else Scripted(start)

    async def at_start(self) -> Scripted | None:
        return self.start


def scoring(score: int) -> Script:
    """Answers differ, and every score is the same."""

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        answers = ("1 + 2 + 4", "4 + 2 + 1", "2 + 1 + 4", "2 + 4 + 1", "1 + 4 + 2")
        said = {"solution": answers[seed % len(answers)], "evaluation": "hm"}
        return said.get(role, f"<score>{score}</score>")

    return script


def tossing(policy: str, role: str, prompt: str, seed: int) -> Said:
    """Scores that follow from nothing."""
    return scoring(3 if seed % 2 else 1)(policy, role, prompt, seed)


def scene_of(now: Script, start: Script | None, method: Method = method_comas.method) -> Scene:
    scene, _ = scripted_scene(method, pick.task, now)
    host = Learning(now, start)
    return replace(scene, members=[replace(member, host=host) for member in scene.members])


def host_of(scene: Scene) -> Learning:
    host = scene.members[0].host
    assert isinstance(host, Learning)
    return host


def step(scene: Scene, number: int) -> list[Episode]:
    return asyncio.run(play_all(scene, QUESTIONS, number))


def begun(scene: Scene) -> FrozenJudge:
    """As a run does when its first step has been played."""
    monitor = frozen_judge.watch()
    assert isinstance(monitor, FrozenJudge)
    asyncio.run(monitor.begin(scene, step(scene, 0)))
    monitor.memory = json.loads(json.dumps(monitor.memory))
    return monitor


def values(monitor: FrozenJudge, scene: Scene, number: int) -> list[float]:
    episodes = step(scene, number)
    asyncio.run(monitor.ask_about(scene, number, episodes))
    readings = monitor.read(Seen(number, episodes))
    return list(readings["apart"].values) if readings else []


def test_judges_that_have_turned_disagree_with_those_of_the_start() -> None:
    monitor = begun(scene_of(scoring(3), scoring(3)))
    assert monitor.memory["start"] == 0.0
    assert values(monitor, scene_of(scoring(3), scoring(3)), 1) == [0.0, 0.0]
    assert values(monitor, scene_of(scoring(1), scoring(3)), 2) == [1.0, 1.0]


def test_a_toss_of_a_coin_disagrees_with_itself_half_of_the_time() -> None:
    start = begun(scene_of(tossing, tossing)).memory["start"]
    assert 0.2 <= start <= 0.8
    assert start * len(QUESTIONS) == pytest.approx(round(start * len(QUESTIONS)))


def test_works_of_the_step_are_shown_to_the_start_and_to_nobody_else() -> None:
    monitor = begun(scene_of(scoring(3), scoring(3)))
    scene = scene_of(scoring(3), scoring(3))
    episodes = step(scene, 5)
    host = host_of(scene)
    before = list(host.asked)
    asyncio.run(monitor.ask_about(scene, 5, episodes))
    assert host.asked == before
    assert host.start is not None
    asked = host.start.asked
    assert {role for _, _, role, _, _ in asked} == {"evaluation", "scoring"}
    shown = pick.task.shown
    work = {game.question.id: shown(game.question, game.turns[0].text) for game in episodes}
    for turn, *_, prompt, _ in asked:
        question = turn.removeprefix("5-frozen_judge/").partition("#")[0]
        assert work[question] in prompt
    assert host.start.buffer == {}


def test_what_is_asked_follows_from_seed_and_step() -> None:
    monitor = begun(scene_of(scoring(3), scoring(3)))

    def asked(number: int) -> list[tuple[str, int]]:
        scene = scene_of(scoring(3), scoring(3))
        values(monitor, scene, number)
        start = host_of(scene).start
        assert start is not None
        return sorted((turn, seed) for turn, *_, seed in start.asked)

    assert asked(3) == asked(3)
    assert asked(3) != asked(4)


def test_a_host_without_the_start_is_told_in_a_line() -> None:
    with pytest.raises(CannotWatch, match="host script cannot be asked with the weights of the"):
        begun(scene_of(scoring(3), None))
    plain, _ = scripted_scene(method_comas.method, pick.task, scoring(3))
    with pytest.raises(CannotWatch, match="host script"):
        begun(plain)


def test_a_game_without_judges_that_learn_is_not_watched() -> None:
    scene = scene_of(scoring(3), scoring(3))
    frozen = replace(scene, members=[replace(member, frozen=True) for member in scene.members])
    for unwatched in (scene_of(scoring(3), None, method_ttrl.method), frozen):
        monitor = begun(unwatched)
        assert monitor.memory == {}
        assert values(monitor, unwatched, 1) == []


def test_verdicts_of_judges_that_never_learn_are_not_compared() -> None:
    """A solver learns with the judge `a0`; the judges beside it accept everything, now as then."""

    def now(policy: str, role: str, prompt: str, seed: int) -> Said:
        return scoring(1 if policy == "a0" else 3)(policy, role, prompt, seed)

    def team(script: Script) -> Scene:
        scene = scene_of(script, scoring(3))
        judges = [replace(member, roles=("evaluation", "scoring")) for member in scene.members[:3]]
        held = [replace(member, frozen=True) for member in judges[1:]]
        solver = replace(scene.members[3], roles=("solution",))
        return replace(scene, members=[judges[0], *held, solver])

    monitor = begun(team(scoring(3)))
    assert monitor.memory["start"] == 0.0
    found = [value for number in range(1, 12) for value in values(monitor, team(now), number)]
    assert found
    assert set(found) == {1.0}
