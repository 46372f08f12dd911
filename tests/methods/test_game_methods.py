"""MARS and SPIRAL: the contract, and what they pay in small cases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comas.config.plugins import load_plugin
from comas.methods import mars, spiral
from comas.tasks import kuhn, tictactoe
from comas.testing import check_method
from comas.testing.scripted import play_step
from comas.types import Episode, Question, Task, Turn, UserMistake
from tests.support import runs
from tests.support.scripts import player


def episode(name: str, *turns: tuple[int, bool], payoffs: tuple[float, float]) -> Episode:
    """A game of kuhn with a turn for each (seat, whether its move was legal)."""
    said = [
        Turn(
            f"{name}/move{at}",
            "a",
            "h/a",
            "move",
            "",
            "",
            True,
            0,
            info={"seat": seat, "legal": legal},
        )
        for at, (seat, legal) in enumerate(turns)
    ]
    for seat, payoff in enumerate(payoffs):
        last = [turn for turn in said if turn.info["seat"] == seat][-1]
        last.info["payoff"] = payoff
    return Episode(name, Question(id=name, prompt="king jack", kind="kuhn"), said)


def pay(found: Episode) -> list[float | None]:
    return [turn.reward for turn in found.turns]


@pytest.mark.parametrize("name", ["mars", "spiral"])
@pytest.mark.parametrize("task", [kuhn.task, tictactoe.task], ids=lambda task: task.name)
def test_contract(name: str, task: Task) -> None:
    method = load_plugin("method", name)
    check_method(method, task, task.load("train", limit=3), player, samples=3, agents=2)


def test_mars_pays_returns_against_the_mean_of_their_seat() -> None:
    one = episode("a", (0, True), (1, False), (0, True), payoffs=(2.0, -2.0))
    two = episode("b", (0, True), (1, True), payoffs=(-1.0, 1.0))
    mars.settle([one, two], kuhn.task, penalty=0.25)
    # seat 0: 2, 2, -1, mean 1; seat 1: -2.25, 1, mean -.625
    assert pay(one) == [1.0, pytest.approx(-1.625), 1.0]
    assert pay(two) == [-2.0, pytest.approx(1.625)]


def test_mars_pays_a_turn_for_what_comes_behind_it() -> None:
    one = episode("a", (0, False), (0, True), (1, True), payoffs=(1.0, -1.0))
    two = episode("b", (0, True), (0, False), (1, True), payoffs=(0.0, 0.0))
    mars.settle([one, two], kuhn.task, gamma=0.5, penalty=0.5)
    # returns of seat 0: .5 - .5, 1; -.25, -.5: mean .0625
    assert pay(one)[:2] == [pytest.approx(-0.0625), pytest.approx(0.9375)]
    assert pay(two)[:2] == [pytest.approx(-0.3125), pytest.approx(-0.5625)]
    mars.settle([one, two], kuhn.task, gamma=0.5, penalty=0.5, scale=True)
    assert sum((reward or 0.0) ** 2 for reward in pay(one)[:2] + pay(two)[:2]) == pytest.approx(4)


def test_games_have_baselines_of_their_own() -> None:
    one = episode("a", (0, True), (1, True), payoffs=(2.0, -2.0))
    other = episode("b", (0, True), (1, True), payoffs=(1.0, -1.0))
    other.question = Question(id="b", prompt="", kind="tictactoe")
    mars.settle([one, other], kuhn.task)
    assert pay(one) == pay(other) == [0.0, 0.0]


def test_spiral_keeps_a_running_mean_per_seat_and_game() -> None:
    one = episode("a", (0, True), (1, False), (0, True), payoffs=(2.0, -2.0))
    two = episode("b", (0, True), (1, True), payoffs=(-1.0, 1.0))
    state = spiral.start([], kuhn.task)
    assert state == {"means": {}}
    spiral.settle([one, two], kuhn.task, state=state, decay=0.5, penalty=0.5)
    # seat 0: 1, then 0; seat 1: -1.25, then -.125
    assert pay(one) == [1.0, -1.25, 1.0]
    assert pay(two) == [-1.0, 1.125]
    after = spiral.update(state, [one, two], kuhn.task, decay=0.5, penalty=0.5)
    assert after == {"means": {"kuhn 0": 0.0, "kuhn 1": -0.125}}
    assert state == {"means": {}}, "it is only read"
    spiral.settle([two], kuhn.task, state=after, decay=0.5)
    assert pay(two) == [-0.5, pytest.approx(1 - 0.4375)]


def test_spiral_without_its_baselines_pays_returns() -> None:
    one = episode("a", (0, True), (1, False), (0, True), payoffs=(2.0, -2.0))
    spiral.settle([one], kuhn.task, state={"means": {}}, baselines=False)
    assert pay(one) == [2.0, pytest.approx(-2.05), 2.0]


@pytest.mark.parametrize("name", ["mars", "spiral"])
def test_without_a_task_they_have_one_of_their_own(name: str) -> None:
    resolved = runs.planned([f"method={name}"])
    assert resolved.task.name == "tictactoe"
    assert list(resolved.config.agents) == ["a0"]
    assert resolved.config.hosts["home"].base == "tiny-games"
    named = runs.planned([f"method={name}", "task=kuhn", "agents=2"])
    assert named.task.name == "kuhn"
    assert list(named.config.agents) == ["a0", "a1"]
    again = runs.planned(resolved.config.model_dump())
    assert again.config == resolved.config, "a run's config names both"
    with pytest.raises(UserMistake, match=f"method {name} .*`rules`"):
        runs.planned([f"method={name}", "task=pick"])


def test_shipped_models_are_asked_in_their_own_words() -> None:
    from types import SimpleNamespace

    from comas.team.build import members_of

    resolved = runs.planned(["method=mars", "agents=2"])
    hosts: Any = {"home": SimpleNamespace(name="home")}
    assert [member.few_words for member in members_of(resolved, hosts)] == [True, True]
    resolved = runs.planned(["method=mars", "base=Qwen/Qwen2.5-0.5B-Instruct", "lr=1"])
    assert [member.few_words for member in members_of(resolved, hosts)] == [False]


def test_self_play_draws_an_agent_for_each_seat() -> None:
    episodes, _, _ = play_step(
        mars.method, kuhn.task, player, kuhn.load("train", limit=24), agents=2
    )
    pairs = {(turn.info["seat"], turn.agent) for e in episodes for turn in e.turns}
    assert pairs == {(0, "a0"), (0, "a1"), (1, "a0"), (1, "a1")}
    assert asyncio.iscoroutinefunction(mars.play)
