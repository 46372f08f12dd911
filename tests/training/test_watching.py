"""A run that is watched: alarms are written, end it where that is wished, and come again bit by bit
when it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.cli.new import METHOD
from comas.config.schema import read
from comas.hooks import Alarm, Hook
from comas.hosts.ledger import BudgetSpent
from comas.monitors import probes
from comas.storage.alarms import drop_alarms, read_alarms
from comas.storage.run import Run
from comas.training import watching
from comas.training.result import is_ended
from comas.types import HostLost, UserMistake
from tests.support.command import run as command
from tests.support.runs import Killed, essence, run_of

LOUD = """
from comas.monitors.monitor import Hypothesis, Monitor, Reading


class Loud(Monitor):
    hypotheses = (Hypothesis("worse", "everything becomes worse", 0.1),)

    def read(self, seen):
        bad = float(seen.step >= FROM)
        return {"worse": Reading([bad] * 20, start=0.1)}


def watch():
    return Loud()
"""


class Heard(Hook):
    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self.notes: list[str] = []

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)

    def note(self, text: str) -> None:
        self.notes.append(text)


def loud(folder: Path, since: int = 2) -> str:
    file = folder / "loud.py"
    file.write_text(LOUD.replace("FROM", str(since)))
    return str(file)


def alarmed(folder: Path, base: Path, hooks: Sequence[Hook] = (), **keys: Any) -> Run:
    keys = {"steps": 6, "agents": 1, "monitors": [loud(folder)], "checkpoint_every": 2, **keys}
    return run_of(folder / "r", base, hooks=hooks, **keys)


def test_an_alarm_is_written_and_told_once(untaught: Path, tmp_path: Path) -> None:
    heard = Heard()
    run = alarmed(tmp_path, untaught, [heard])
    (alarm,) = read_alarms(run.path)
    assert alarm["kind"] == "loud.worse"
    assert alarm["step"] == 2
    assert alarm["since"] == 2
    assert alarm["evidence"] >= alarm["needed"] == pytest.approx(200.0)
    assert alarm["text"] == (
        "everything becomes worse (loud: 1.00 lately, 0.10 at the start; since step 3,"
        " evidence over a million to 1)"
    )
    assert [told.kind for told in heard.alarms if told.kind == "loud.worse"] == ["loud.worse"]
    metrics = list(run.metrics())
    assert len(metrics) == 6
    assert metrics[3]["monitors"]["loud"]["worse"]["values"] == "1.0*20"
    assert any("everything becomes worse" in note for note in metrics[2]["notes"])


@pytest.mark.parametrize("kept", ["float('nan')", "{1, 2}", "object()"])
def test_a_memory_that_no_checkpoint_can_hold_drops_the_monitor(
    kept: str, untaught: Path, tmp_path: Path
) -> None:
    file = tmp_path / "forgetful.py"
    text = LOUD.replace("FROM", "1").replace("bad =", f"self.memory['x'] = {kept}\n        bad =")
    file.write_text(text)
    heard = Heard()
    run = alarmed(tmp_path, untaught, [heard], monitors=[str(file)], steps=3)
    assert len(list(run.metrics())) == 3
    assert any("forgetful failed and watches no more" in note for note in heard.notes)
    comas.resume(run.path, steps=4)
    assert len(list(run.metrics())) == 4


def test_a_monitor_whose_hypotheses_are_others_by_now_is_dropped(
    untaught: Path, tmp_path: Path
) -> None:
    run = alarmed(tmp_path, untaught, steps=2)
    file = tmp_path / "loud.py"
    file.write_text(file.read_text().replace('"worse"', '"sadder"'))
    heard = Heard()
    comas.resume(run.path, hooks=[heard], steps=3)
    assert len(list(run.metrics())) == 3
    assert any("no hypothesis 'sadder'" in note for note in heard.notes)


def test_an_alarm_ends_the_run_where_that_is_wished(tmp_path: Path) -> None:
    heard = Heard()
    run = alarmed(tmp_path, Path("tiny-c"), [heard], on_alarm="stop", test_questions=4)
    assert len(list(run.metrics())) == 3
    assert run.marker() is not None
    assert run.marker()["step"] == 3  # type: ignore[index]
    assert run.read_eval("after")["step"] == 3  # type: ignore[index]
    assert any("on_alarm=stop" in note for note in heard.notes)


@pytest.mark.parametrize(("step", "ended"), [(1, False), (2, True), (3, False)])
def test_only_an_alarm_of_the_last_step_has_ended_a_run(step: int, ended: bool) -> None:
    assert is_ended([{"step": step, "action": "stop"}], 3, "stop") is ended


def test_a_run_that_was_ended_goes_on_where_that_is_asked(untaught: Path, tmp_path: Path) -> None:
    run = alarmed(tmp_path, untaught, on_alarm="stop")
    comas.resume(run.path)
    assert len(list(run.metrics())) == 3
    comas.resume(run.path, on_alarm="warn")
    assert len(list(run.metrics())) == 6
    assert len(read_alarms(run.path)) == 1


def test_an_alarm_that_came_while_the_run_was_to_go_on_does_not_end_it_later(
    untaught: Path, tmp_path: Path
) -> None:
    late = tmp_path / "late.py"
    late.write_text(LOUD.replace("FROM", "7"))
    run = alarmed(tmp_path, untaught, monitors=[loud(tmp_path), str(late)])
    comas.resume(run.path, steps=12, on_alarm="stop")
    assert len(list(run.metrics())) == 8, "the second alarm ends it"
    told = [(alarm["kind"], alarm["action"]) for alarm in read_alarms(run.path)]
    assert told == [("loud.worse", "warn"), ("late.worse", "stop")]
    comas.resume(run.path)
    assert len(list(run.metrics())) == 8
    comas.resume(run.path, on_alarm="warn", steps=9)
    comas.resume(run.path, on_alarm="stop", steps=10)
    assert len(list(run.metrics())) == 10, "it went beyond the alarm that had ended it"


def test_a_resumed_run_sees_and_alarms_what_a_whole_one_does(
    untaught: Path, tmp_path: Path
) -> None:
    class Killing(Hook):
        def step(self, metrics: Any, episodes: Any) -> None:
            if metrics["step"] == 5:  # after the alarm, and before it is committed
                raise Killed

    shared = {"steps": 6, "checkpoint_every": 2, "questions": 4, "agents": 2}
    names = [loud(tmp_path, 4), "probes", "rejections", "unreadable"]
    whole = run_of(tmp_path / "whole", untaught, monitors=names, **shared)
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        run_of(folder, untaught, monitors=names, hooks=[Killing()], **shared)
    assert [alarm["step"] for alarm in read_alarms(folder)] == [4]
    assert Run(folder).marker()["step"] == 4  # type: ignore[index]
    comas.resume(folder)
    read = [[step["monitors"] for step in run.metrics()] for run in (whole, Run(folder))]
    assert read[0] == read[1]
    assert read_alarms(folder) == read_alarms(whole.path)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (BudgetSpent("no tokens are left"), True),
        (UserMistake("no memory is left"), True),
        (HostLost("an actor died"), True),
        (ZeroDivisionError("its own"), False),
    ],
)
def test_what_ends_a_monitors_games_is_no_fault_of_the_monitor(
    error: Exception, kept: bool
) -> None:
    notes: list[str] = []
    config = read(None, {"monitors": ["probes"]})
    watched = watching.MonitorRunner(config, notes.append)

    async def games() -> None:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [error])

    work = watched._guarded("probes", games())
    with pytest.raises(ExceptionGroup) if kept else nullcontext():
        asyncio.run(work)
    assert list(watched.monitors) == (["probes"] if kept else [])
    assert bool(notes) is not kept


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors that may spend what they like, also in runs too short to show anything."""
    monkeypatch.setattr(watching, "SHARE", 100.0)
    monkeypatch.setattr(probes, "FEWEST", 1)
    monkeypatch.setattr(watching, "seen_after", lambda *_: 1)


@pytest.mark.usefixtures("paid")
def test_watching_changes_nothing_in_what_is_watched(tmp_path: Path) -> None:
    names = ["probes", "rejections", "habits"]
    seed = Path("tiny-c")
    keys: dict[str, Any] = {"steps": 2, "questions": 16, "agents": 2}
    watched = run_of(tmp_path / "watched", seed, monitors=names, **keys)
    alone = run_of(tmp_path / "alone", seed, monitors=[], **keys)
    assert essence(watched) == essence(alone)
    read = [step["monitors"] for step in watched.metrics()]
    for name in ("probes", "habits"):
        assert [name in of_step for of_step in read] == [False, True]


def test_games_of_monitors_take_a_twentieth_of_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "FEWEST", 1)
    monkeypatch.setattr(watching, "seen_after", lambda *_: 1)
    keys: dict[str, Any] = {"questions": 24, "agents": 2, "monitors": ["probes"]}
    run = run_of(tmp_path / "r", Path("tiny-c"), steps=16, lr=1e-9, **keys)
    steps = list(run.metrics())
    asked = [step["monitor_tokens"] for step in steps]
    assert 0 < max(asked[1:]) < asked[0]
    # what is planned follows from the first step alone, and others are longer or shorter
    assert 0.02 < sum(asked) / sum(step["step_tokens"] for step in steps) < 0.055


def test_a_run_too_short_to_show_anything_asks_nothing(tmp_path: Path) -> None:
    heard = Heard()
    run = run_of(
        tmp_path / "r", Path("tiny-c"), steps=3, questions=8, monitors=["probes"], hooks=[heard]
    )
    assert [step["monitor_tokens"] for step in run.metrics()] == [0, 0, 0]
    assert sum("it is too short" in note for note in heard.notes) == 1


@pytest.mark.parametrize("noted", [True, False])
def test_judges_whose_verdicts_no_game_notes_are_told_of(noted: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    lines = METHOD.splitlines(keepends=True)
    if not noted:
        lines = [line.replace('check.info["verdict"]', 'check.info["last"]') for line in lines]
    file.write_text("".join(lines))
    heard = Heard()
    keys: dict[str, Any] = {"questions": 8, "test_questions": 0, "threads": 1, "max_tokens": 24}
    out = str(tmp_path / "r")
    comas.train(method=str(file), steps=1, monitors=["probes"], hooks=[heard], out=out, **keys)
    told = [note for note in heard.notes if "its game notes no verdicts of its judges" in note]
    assert len(told) == (not noted)


def test_alarms_beyond_the_last_commit_are_dropped(untaught: Path, tmp_path: Path) -> None:
    run = alarmed(tmp_path, untaught)
    drop_alarms(run.path, after=3)
    assert len(read_alarms(run.path)) == 1
    drop_alarms(run.path, after=2)
    assert read_alarms(run.path) == []


def test_a_run_that_was_warned_and_ends_by_its_tokens_was_not_ended_by_an_alarm(
    untaught: Path, tmp_path: Path
) -> None:
    run = alarmed(tmp_path, untaught, steps=3)
    result = comas.resume(run.path, steps=50, tokens=1, on_alarm="stop")
    assert result.steps < 50
    assert not result.ended_by_alarm


def test_nobody_watches_a_run_without_monitors(untaught: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", untaught, steps=1, monitors=[])
    assert [step["monitors"] for step in run.metrics()] == [{}]
    assert not list(run.path.rglob("monitors.json"))


def test_an_unknown_monitor_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(["train", "monitors=['probe']"], monkeypatch) == 2
    assert "monitors = 'probe': did you mean probes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('{"worse":', '{"better":'), "reads 'better', which is none of its hypotheses"),
        (('return {"worse"', 'return 0 and {"worse"'), "read gave 0: a dict of hypothesis"),
        (("* 20", "* 20 + [7.0]"), "values from 0 to 1 are wanted"),
        (("bad = ", "bad = 1 / 0 + "), "ZeroDivisionError"),
    ],
)
def test_a_monitor_that_fails_is_noted_and_dropped(
    change: tuple[str, str], reason: str, untaught: Path, tmp_path: Path
) -> None:
    file = Path(loud(tmp_path, 0))
    file.write_text(file.read_text().replace(*change))
    heard = Heard()
    run = run_of(tmp_path / "r", untaught, hooks=[heard], steps=3, agents=1, monitors=[str(file)])
    assert [step["monitors"] for step in run.metrics()] == [{}, {}, {}]
    (note,) = [note for note in heard.notes if note.startswith("monitor loud failed")]
    assert reason in note
    file.write_text(LOUD.replace("FROM", "0"))
    comas.resume(run.path, steps=4)
    assert [step["monitors"] for step in run.metrics()] == [{}, {}, {}, {}], "it stays dropped"


def test_a_run_goes_on_without_a_hypothesis_whose_values_are_read_otherwise_by_now(
    untaught: Path, tmp_path: Path
) -> None:
    file = Path(loud(tmp_path, 9))
    run = run_of(tmp_path / "r", untaught, steps=1, agents=1, monitors=[str(file)])
    file.write_text(file.read_text().replace(", 0.1),", ", 0.1, scale=2),"))
    heard = Heard()
    comas.resume(run.path, steps=2, hooks=[heard])
    assert [list(step["monitors"]) for step in run.metrics()] == [["loud"], []]
    assert any("values of 'worse' were read otherwise" in note for note in heard.notes)
