"""A step is played while the one before is learnt: which weights say what is a function of the
config, whatever happens on the way.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from comas.config.ahead import check_ahead
from comas.config.resolve import resolve
from comas.config.schema import read
from comas.forecast.overview import plan
from comas.hooks import Hook
from comas.storage.run import Run
from comas.testing import Scripted, golden_script, replay
from comas.types import UserMistake
from tests.support.ahead import AHEAD, ChainedAhead, go_on, train
from tests.support.faults import story

SERVED = [0, 0, 1, 2, 4, 4, 6, 6, 8, 8, 9]
"""Step -> learning steps behind who plays it: all of them after steps 4 and 8, which end with a
checkpoint, and after step 6, which ends with a measurement; otherwise one is missing.
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ahead") / "whole"
    train(folder)
    return story(folder)


def test_the_schedule_of_versions(whole: Any) -> None:
    _, talk, *_ = whole
    versions = [{version for *_, version in turns} for turns in talk]
    assert versions == [{version} for version in SERVED]


def test_two_runs_are_the_same_and_another_than_one_that_is_not_ahead(
    whole: Any, tmp_path: Path
) -> None:
    train(tmp_path / "again")
    assert story(tmp_path / "again") == whole
    train(tmp_path / "behind", "ahead=0", host=Behind())
    _, talk, *_ = story(tmp_path / "behind")
    assert [turns[0][-1] for turns in talk] == list(range(11))
    assert talk[0] == whole[1][0]
    assert [t[:3] for t in talk[1]] != [t[:3] for t in whole[1][1]]


REMEMBERING = """
import dataclasses
from comas.methods import ttrl


async def play(question, agents, rng, task, *, state):
    solution = await agents[0].ask("solution", f"Step {state['step']}: {question.prompt}")
    return solution.text


def settle(episodes, task):
    for episode in episodes:
        episode.turns[0].reward = 1.0


method = dataclasses.replace(
    ttrl.method,
    play=play,
    settle=settle,
    start=lambda questions, task: {"step": 0},
    update=lambda state, episodes, task: {"step": state["step"] + 1},
    draws_behind=True,
    presets={},
)
"""


def test_a_step_is_replayed_with_what_was_remembered_when_it_was_played(tmp_path: Path) -> None:
    method = tmp_path / "remembering.py"
    method.write_text(REMEMBERING)
    train(tmp_path / "run", f"method={method}")
    for step, remembered in enumerate(SERVED):
        turns = [turn for e in replay(tmp_path / "run", step) for turn in e.turns]
        assert {turn.prompt.split(":")[0] for turn in turns} == {f"Step {remembered}"}


class Behind(ChainedAhead):
    """Publishes what it has learnt at once, as hosts do that are not asked meanwhile."""

    async def learn(self, payoffs: Any, method: Any) -> Any:
        self.closed = self.buffer
        learned = await super().learn(payoffs, method)
        await self.publish()
        return learned


def test_the_next_step_is_played_while_a_step_is_learnt(tmp_path: Path) -> None:
    host = ChainedAhead()
    train(tmp_path / "run", host=host)
    learning = 0
    during: set[str] = set()
    alone: set[str] = set()
    for event in host.events:
        learning += event == "learn begins"
        learning -= event == "learn ends"
        if event.startswith("ask"):
            (during if learning else alone).add(event.removeprefix("ask "))
        if event == "publish":
            assert learning == 0
    assert {"1", "2", "3", "5", "7", "9", "10"} <= during
    assert not {"0", "4", "6", "8"} & during
    assert {"0", "4", "6", "8"} <= alone


class Interrupting(Hook):
    """Sends `times` signals at the first turn of `step`."""

    def __init__(self, step: int, times: int) -> None:
        self.step_ = step
        self.left = times

    def turn(self, turn: Any) -> None:
        while self.left and turn.id.startswith(f"{self.step_}/"):
            self.left -= 1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5, 6, 7, 10])
def test_a_stop_at_any_step_changes_nothing(
    whole: Any, tmp_path: Path, step: int, times: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", hook=Interrupting(step, times))
    kept = (Run.open(tmp_path / "cut").marker() or {})["step"]
    # a step that is played alone is played to its end, unless it is given up; one that is played
    # ahead is dropped
    assert kept == (step + 1 if times == 1 and SERVED[step] == step else step)
    go_on(tmp_path / "cut")
    assert story(tmp_path / "cut") == whole


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_many_stops_change_nothing(whole: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        train(folder, hook=Interrupting(2, 1))
    from comas.team.build import run_sync
    from comas.training.start import resume_async

    for step in (3, 5, 7, 10):
        with pytest.raises(KeyboardInterrupt):
            run_sync(resume_async(folder, Interrupting(step, 1), hosts={"home": ChainedAhead()}))
    go_on(folder)
    assert story(folder) == whole


def test_a_run_that_is_made_longer_is_what_it_would_have_been(tmp_path: Path) -> None:
    # what monitors bet depends on how long a run is going to be
    train(tmp_path / "whole", "monitors=[]")
    whole = story(tmp_path / "whole")
    for steps in (1, 3, 4, 6, 8, 10):
        folder = tmp_path / f"run-{steps}"
        train(folder, "monitors=[]", f"steps={steps}")
        assert len(story(folder)[0]) == steps
        go_on(folder, steps=11)
        assert story(folder) == whole


def test_no_step_is_played_beyond_the_budget_of_tokens(whole: Any, tmp_path: Path) -> None:
    budget = whole[0][2]["tokens"]
    host = ChainedAhead()
    train(tmp_path / "run", f"tokens={budget}", host=host)
    run = Run.open(tmp_path / "run")
    assert len(list(run.metrics())) == 3
    assert "ask 3" not in host.events
    measured = run.read_eval("after")
    assert measured is not None
    assert measured["step"] == 3
    go_on(tmp_path / "run", "tokens=1000000000")
    assert story(tmp_path / "run") == whole


class FailsToLearn(ChainedAhead):
    """Breaks while it learns the sixth step, when the seventh is waited for without end."""

    async def ask(self, turn: str, *args: Any) -> Any:
        if turn.startswith("5/"):
            await asyncio.Event().wait()
        return await super().ask(turn, *args)

    async def learn(self, payoffs: Any, method: Any) -> Any:
        if self.learnt == 4:
            await asyncio.sleep(0.05)
            raise ValueError("it broke")
        return await super().learn(payoffs, method)


def test_what_fails_to_learn_is_told_and_the_step_that_was_played_is_dropped(
    whole: Any, tmp_path: Path
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        train(tmp_path / "run", host=FailsToLearn())
    (error,) = caught.value.exceptions
    assert str(error) == "it broke"
    assert error.__notes__ == ["in host home, learning of step 5"]
    assert (Run.open(tmp_path / "run").marker() or {})["step"] == 4
    go_on(tmp_path / "run")
    assert story(tmp_path / "run") == whole


class FailsToPlay(ChainedAhead):
    """Breaks where it is asked in the sixth step, at once."""

    async def ask(self, turn: str, *args: Any) -> Any:
        if turn.startswith("5/"):
            raise UserMistake("it broke")
        return await super().ask(turn, *args)


def test_what_fails_to_play_loses_no_step_that_was_learnt(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="it broke"):
        train(tmp_path / "run", host=FailsToPlay())
    run = Run.open(tmp_path / "run")
    assert (run.marker() or {})["step"] == 5
    assert len(list(run.metrics())) == 5
    go_on(tmp_path / "run")
    assert story(tmp_path / "run") == whole


@pytest.mark.parametrize("action", ["stop", "restore"])
def test_an_alarm_ends_a_run_that_is_ahead(
    whole: Any, tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alarming.py").write_text(ALARMING)
    host = ChainedAhead()
    pairs = ["monitors=['./alarming.py']", f"on_alarm={action}"]
    train(tmp_path / "run", *pairs, host=host)
    run = Run.open(tmp_path / "run")
    steps = len(list(run.metrics()))
    assert 1 < steps < 11
    assert host.version == host.learnt == (steps if action == "stop" else 0)
    older = run.path / "checkpoints" / f"step-{steps}" / "ahead.json"
    assert older.exists() == (action == "stop" and SERVED[steps] != steps)
    train(tmp_path / "warned", "monitors=['./alarming.py']")
    if action == "stop":
        go_on(tmp_path / "run", "on_alarm=warn")
        assert story(tmp_path / "run") == story(tmp_path / "warned")


ALARMING = """
from comas.monitors.monitor import Hypothesis, Monitor, Reading


class Rising(Monitor):
    hypotheses = (Hypothesis("rises", "it rises", 0.0),)

    def read(self, seen):
        return {"rises": Reading([float(seen.step > 1)] * 40, 0.0)}


def watch():
    return Rising()
"""


def test_monitors_are_read_with_what_they_were_told_in_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text(ASKING)
    train(tmp_path / "run", "monitors=['./asking.py']")
    read_at = [
        m["monitors"]["asking"]["step"]["mean"] for m in Run.open(tmp_path / "run").metrics()
    ]
    assert read_at == [step / 100 for step in range(11)]


ASKING = """
from comas.monitors.monitor import Hypothesis, Monitor, Reading


class Asking(Monitor):
    hypotheses = (Hypothesis("step", "it rises", 1.0),)

    async def ask(self, scene, step, discussions):
        self.told = step

    def read(self, seen):
        assert seen.step == self.told
        return {"step": Reading([self.told / 100], 0.0)}


def watch():
    return Asking()
"""


def test_what_a_method_remembers_is_one_step_behind_and_survives_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.py").write_text(COUNTING)
    train(tmp_path / "whole", "method=./counting.py")
    expected = story(tmp_path / "whole")
    records = [
        [e["turns"][0]["info"]["seen"] for e in Run(tmp_path / "whole").episodes(s)]
        for s in range(11)
    ]
    assert [set(seen) for seen in records] == [{steps} for steps in SERVED]
    for step in (2, 5, 10):
        folder = tmp_path / f"cut-{step}"
        with pytest.raises(KeyboardInterrupt):
            train(folder, "method=./counting.py", hook=Interrupting(step, 1))
        go_on(folder)
        assert story(folder) == expected


COUNTING = """
from dataclasses import replace

from comas.methods import comas


async def play(question, agents, rng, task, *, state):
    turn = await agents[0].ask("solution", question.prompt)
    turn.info["seen"] = state["steps"]
    return turn.text


def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = float(len(turn.text) % 3)


method = replace(
    comas.method,
    play=play,
    settle=settle,
    start=lambda questions, task: {"steps": 0},
    update=lambda state, episodes, task: {"steps": state["steps"] + 1},
    draws_behind=True,
    paid=("solution",),
    presets={},
    kl={},
)
"""


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["method=r_zero"], "ahead=1: method r_zero goes on from what a step brought"),
        (["hosts.home.compile=true"], "hosts.home.compile: "),
        (
            ["method=star", "hosts.home.old_logprobs=sampled"],
            "hosts.home.old_logprobs=sampled leaves the correction",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(pairs: list[str], message: str) -> None:
    with pytest.raises(UserMistake) as caught:
        check_ahead(resolve(read(None, ["ahead=1", *pairs])))
    assert str(caught.value).startswith(message)
    assert "set ahead=0" in str(caught.value)
    check_ahead(resolve(read(None, pairs)))
    # a dry run refuses it as training does, and so does a study
    with pytest.raises(UserMistake, match="set ahead=0"):
        plan(read(None, ["ahead=1", *pairs]))


def test_the_old_policy_is_who_said_it_where_the_loss_has_a_ratio() -> None:
    def old_policy(*pairs: str) -> str | None:
        return resolve(read(None, pairs)).config.hosts["home"].old_logprobs

    assert old_policy() == "recomputed"
    assert old_policy("ahead=1") == "sampled"
    assert old_policy("ahead=1", "old_logprobs=first_pass") == "first_pass"
    assert old_policy("ahead=1", "method=star") == "recomputed"


def test_a_host_that_cannot_be_asked_while_it_learns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="ahead=1: host home cannot be asked while it learns"):
        train(tmp_path / "run", host=Scripted(golden_script, name="home"))  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_ahead_is_0_or_1() -> None:
    with pytest.raises(UserMistake, match="ahead"):
        read(None, ["ahead=2"])
    assert read(None, []).ahead == 0
    assert json.dumps(AHEAD)
