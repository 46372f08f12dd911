"""How far a run has come is told while it works: stages in order, true counts, and where a person
looks on.
"""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import comas
import comas.display as watching
from comas.cli.output import Outlet
from comas.config.schema import read
from comas.display import Lines
from comas.evaluation.accuracy import by_agent
from comas.hooks import EVERY, Hook, Hooks, Progress, Pulse
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.questions.checked import of_run
from comas.seams import Request
from comas.storage.run import Run
from comas.team.build import Team, members_of, run_sync
from comas.testing import Scripted, golden_script
from comas.training.loop import Session
from comas.training.start import rehearsed, train_async
from comas.types import Meter, Question, Sampling, Turn, UserMistake
from tests.support import runs
from tests.support.engines import engine_of, is_stacked
from tests.support.learning import METHOD, rows
from tests.support.models import llama
from tests.support.runs import SMALL

SCRIPTED = [
    "steps=2",
    "questions=3",
    "test_questions=4",
    "eval_questions=2",
    "eval_every=2",
    "checkpoint_every=2",
    "agents=2",
]
ONE_STEP: dict[str, Any] = {**SMALL, "steps": 1, "test_questions": 0, "eval_every": 0}


class Told(Hook):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Progress] = []
        self.heard: list[Turn] = []

    def working(self, progress: Progress) -> None:
        self.told.append(progress)

    def turn(self, turn: Turn) -> None:
        self.heard.append(turn)

    def stages(self) -> list[tuple[str, int]]:
        """In the order in which they began."""
        found: list[tuple[str, int]] = []
        for progress in self.told:
            if not found or found[-1] != (progress.stage, progress.step):
                found.append((progress.stage, progress.step))
        return found


def scripted(
    folder: Path, watch: Hook, keys: Sequence[str] = SCRIPTED, script: Any = golden_script
) -> Run:
    resolved = runs.planned(list(keys))
    config = resolved.config
    host = Scripted(script, name="home")
    members = [
        replace(m, host=host) for m in members_of(resolved, dict.fromkeys(config.hosts, host))
    ]
    team = Team(resolved, {"home": host}, members)
    run = Run.create(team.config.model_dump(), str(folder / "run"))
    try:
        asked = of_run(config, resolved.task, watch.note)
        replies = len(rehearsed(resolved, asked.train[0]))
        asyncio.run(Session(team, watch, asked, replies).go(run, 0))
    finally:
        run.unlock()
    return run


def test_stages_come_in_order_and_count_true(tmp_path: Path) -> None:
    watch = Told()
    run = scripted(tmp_path, watch)
    assert watch.stages() == [
        ("before", 0),
        ("saving", 0),
        ("playing", 0),
        ("learning", 0),
        ("playing", 1),
        ("learning", 1),
        ("validation", 2),
        ("saving", 2),
        ("after", 2),
    ]
    begun = {(p.stage, p.step): p for p in reversed(watch.told)}
    assert begun["before", 0].expected == 8
    assert begun["validation", 2].expected == 4
    assert begun["playing", 0].expected == 3 * 3
    assert [q.id for q in begun["playing", 1].questions] == [
        e["question"]["id"] for e in run.episodes(1)
    ]
    assert all(p.replies == p.tokens == 0 for p in begun.values())
    # not those of measurements
    assert len(watch.heard) == sum(len(e["turns"]) for step in (0, 1) for e in run.episodes(step))


def test_nothing_is_measured_where_nothing_is_to_be(tmp_path: Path) -> None:
    watch = Told()
    scripted(tmp_path, watch, [*SCRIPTED, "test_questions=0", "eval_every=0"])
    assert {stage for stage, _ in watch.stages()} == {"playing", "learning", "saving"}


class Slow(Scripted):
    """Takes its time over every reply."""

    async def ask(self, ask: Any) -> Any:
        await asyncio.sleep(0.6 * EVERY)
        return await super().ask(ask)


def test_within_a_step_replies_are_counted_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Scripted", Slow)
    watch = Told()
    said = {"solution": "1 + 2 = 3 + 4 = 7", "evaluation": "right", "scoring": "<score> 3 </score>"}
    scripted(
        tmp_path,
        watch,
        [
            *SCRIPTED,
            "steps=1",
            "test_questions=0",
            "eval_every=0",
            "options.rounds=4",
            "questions=2",
        ],
        said,
    )
    playing = [p for p in watch.told if p.stage == "playing"]
    assert len(playing) > 4
    counts = [p.replies for p in playing]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert all(p.replies <= 24 == p.expected for p in playing)
    assert playing[-1].tokens > 0
    assert playing[-1].seconds > EVERY


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["method=comas"], 3),
        (["method=comas", "options.rounds=2", "options.evaluations=3"], 14),
        (["method=comas", "options.evaluate=false", "options.evaluations=3"], 4),
        (["method=ttrl", "options.votes=5"], 5),
        (["method=rlvr", "options.votes=3", "samples=2"], 6),
    ],
)
def test_a_step_asks_for_as_many_replies_as_were_expected(
    keys: list[str], wanted: int, tmp_path: Path
) -> None:
    said = {"solution": "1 + 2 = 3 + 4 = 7", "evaluation": "right", "scoring": "<score> 3 </score>"}
    watch = Told()
    run = scripted(
        tmp_path, watch, [*SCRIPTED, "steps=1", "test_questions=0", "eval_every=0", *keys], said
    )
    assert {p.expected for p in watch.told if p.stage == "playing"} == {3 * wanted}
    assert sum(len(e["turns"]) for e in run.episodes(0)) == 3 * wanted


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("keys", "replies"),
    [
        ([f"method={EXAMPLES / 'best_of.py'}"], 8),
        ([f"method={EXAMPLES / 'best_of.py'}", "options.drafts=3"], 6),
        ([f"method={EXAMPLES / 'debate.py'}"], 4),
    ],
)
def test_of_an_own_game_as_many_are_expected_as_it_asks_in_a_rehearsal(
    keys: list[str], replies: int, tmp_path: Path
) -> None:
    watch = Told()
    run = scripted(
        tmp_path, watch, [*SCRIPTED, "steps=1", "test_questions=0", "eval_every=0", *keys]
    )
    playing = {(p.expected, p.certainty) for p in watch.told if p.stage == "playing"}
    assert playing == {(3 * replies, "about")}
    assert sum(len(e["turns"]) for e in run.episodes(0)) == 3 * replies


def test_after_three_steps_it_is_said_how_long_the_rest_takes() -> None:
    console = Console(file=io.StringIO(), width=200)
    lines = Lines(console, every=0.0)
    lines.total = 10
    for step in range(4):
        metrics = {"step": step, "tokens": 10 * step, "step_tokens": 10, "seconds": 20.0 + step}
        lines.step(metrics, [])
    *before, third, fourth = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert not [line for line in before if "other steps" in line]
    assert third.endswith("about 2:27 for the other steps")  # seven steps of 21 seconds
    assert fourth.endswith("about 2:09 for the other steps")
    lines.tokens = 41  # which end the run sooner
    assert lines._seconds_left({"step": 3, "tokens": 21, "step_tokens": 10}) == 2 * 21.5


@pytest.mark.parametrize("attention_bias", [False, True], ids=["stack", "general"])
def test_the_engine_counts_while_it_generates(attention_bias: bool) -> None:
    engine = engine_of(
        {f"p{i}": llama(i, attention_bias=attention_bias) for i in range(2)}, [3], 0, 128
    )
    assert (not is_stacked(engine)) == attention_bias
    seen: list[tuple[int, int]] = []

    def wanted() -> bool:
        seen.append((engine.meter.tokens, engine.meter.replies))
        return True

    prompts = [np.array([5, 6, 7]), np.array([8, 9])]
    asked = [Request(f"p{i % 2}", prompts[i % 2], Sampling(1.0, 1.0, 4 + i), i) for i in range(6)]
    done = engine.generate(asked, wanted)
    assert engine.meter.tokens == sum(len(g.token_ids) for g in done)
    assert engine.meter.replies == 6
    assert seen == sorted(seen)
    assert 0 < seen[0][0] < engine.meter.tokens
    assert seen[0][1] < 6


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("tokens_per_pass", [8192, 30])
def test_the_learner_counts_rows_as_it_learns(epochs: int, tokens_per_pass: int) -> None:
    recipe = Recipe(1e-3, tokens_per_pass=tokens_per_pass)
    method = replace(METHOD, epochs=epochs)
    learner = FullLearner({"a": llama(1), "b": llama(2)}, recipe, method, 0)
    learner.step({"a": rows(7), "b": rows(5, 1)})
    assert learner.meter.rows_learnt == 12 * epochs
    referred = 12  # METHOD has a KL for solutions only
    assert 0 < learner.meter.rows_read <= 12 + referred


def test_a_real_step_is_counted_to_its_end(untaught: Path, tmp_path: Path) -> None:
    class Meters(Told):
        def begin(self, run: Run, team: Team, start: int) -> None:
            self.meter: Meter = team.hosts["home"].meter  # type: ignore[attr-defined]

    watch = Meters()
    keys = {**ONE_STEP, "hosts__home__base": str(untaught), "out": str(tmp_path / "r")}
    run_sync(
        train_async(
            read(None, {key.replace("__", "."): value for key, value in keys.items()}), watch
        )
    )
    assert watch.told[:2] == [Progress("estimating"), Progress("loading")]
    (metrics,) = Run(tmp_path / "r").metrics()
    assert watch.meter.tokens == metrics["step_tokens"]
    assert watch.meter.replies == metrics["counts"]["turns"] == len(watch.heard)
    assert watch.meter.rows_due == watch.meter.rows_learnt == metrics["counts"]["paid"]


def test_validation_is_kept_per_agent(tmp_path: Path) -> None:
    run = scripted(tmp_path, Told())
    first, second = run.metrics()
    assert "validation_by_agent" not in first
    assert set(second["validation_by_agent"]) == {"a0", "a1"}
    assert sum(second["validation_by_agent"].values()) / 2 == pytest.approx(
        second["validation"]["mean"]
    )
    judged = [{"agent": "b", "verdict": v} for v in ("right", "wrong", "failed", "right")] + [
        {"agent": "a", "verdict": "failed"}
    ]
    assert by_agent(judged) == {"b": 2 / 3}


class Raising(Hook):
    def working(self, progress: Progress) -> None:
        if progress.stage == "playing" and progress.seconds > 0.5 * EVERY:
            raise ZeroDivisionError("mine")


def test_a_hook_that_raises_is_noted_once_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Scripted", Slow)
    keys = [*SCRIPTED, "test_questions=0", "eval_every=0", "options.rounds=3"]
    run = scripted(tmp_path, Raising(), keys)
    assert len(list(run.metrics())) == 2
    said = [record.getMessage() for record in caplog.records if "Raising" in record.getMessage()]
    assert said == [
        "hook Raising failed in working and is not told any more: ZeroDivisionError: mine"
    ]


def test_several_hooks_are_told_of_a_run_and_one_that_fails_stops_none(tmp_path: Path) -> None:
    class Fails(Told):
        def step(self, metrics: Any, episodes: Any) -> None:
            raise OSError("no tracker")

    class Notes(Told):
        def __init__(self) -> None:
            super().__init__()
            self.notes: list[str] = []
            self.results: list[Any] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

        def ended(self, result: Any) -> None:
            self.results.append(result)

    fails = Fails()
    notes = Notes()
    scripted(tmp_path, Hooks([fails, notes]), [*SCRIPTED, "test_questions=0", "eval_every=0"])
    assert fails.stages() == notes.stages()[: len(fails.stages())]
    assert len(fails.stages()) < len(notes.stages())
    assert sum("OSError: no tracker" in note for note in notes.notes) == 1
    assert [result.steps for result in notes.results] == [2]


def test_an_evaluation_has_the_same_hooks(untaught: Path, tmp_path: Path) -> None:
    events: list[str] = []

    class Games(Hook):
        def planned(self, folder: Path, games: int, done: int) -> None:
            events.append(f"planned {games}")

        def game(self, record: Any) -> None:
            events.append("game")

        def ended(self, result: Any) -> None:
            events.append(f"ended {len(result['cells'])}")

    class Fails(Hook):
        def game(self, record: Any) -> None:
            raise ZeroDivisionError

    found = comas.evaluate(untaught, limit=2, out=tmp_path / "e", hooks=[Fails(), Games()])
    assert events == ["planned 2", "game", "game", "ended 1"]
    assert found.cells[0]["n"] == 2


def test_what_is_no_hook_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"comas\.Hook"):
        comas.train(hooks=Hook(), out=str(tmp_path / "r"))  # type: ignore[arg-type]


def test_the_pulse_ends_with_the_run() -> None:
    watch = Told()

    async def beat() -> int:
        pulse = Pulse(watch, {})
        with pulse.beating():
            await asyncio.sleep(2.5 * EVERY)
        told = len(watch.told)
        await asyncio.sleep(2 * EVERY)
        return told

    assert 0 < asyncio.run(beat()) == len(watch.told)


def test_speed_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Meter()
    pulse = Pulse(Hook(), {"home": SimpleNamespace(meter=meter)})  # type: ignore[dict-item]
    pulse.turn_to("playing", 0, questions=[Question(id="q", prompt="p")])
    speeds = []
    for second in range(1, 21):
        clock[0] = 50.0 + second
        meter.tokens += 10 if second <= 10 else 40
        speeds.append(pulse.progress().speed)
    assert speeds[9] == 10.0
    assert speeds[-1] == 40.0
    pulse.turn_to("learning", 0)
    assert pulse.progress().speed is None
    assert pulse.progress().tokens == 0


def test_the_command_line_hands_progress_on() -> None:
    watch = Told()
    Outlet(watch).working(Progress("saving", 3))
    assert watch.told == [Progress("saving", 3)]


def test_what_is_shown_ends_no_run() -> None:
    class Broken(Hook):
        def locate(self, folder: Path) -> None:
            raise KeyError("locate")

        def step(self, metrics: Any, episodes: Any) -> None:
            raise ValueError("step")

        def note(self, text: str) -> None:
            raise ValueError("note")

    outlet = Outlet(Broken())
    outlet.step({}, [])
    outlet.step({}, [])
    assert outlet.hooks == []
    heard: list[str] = []

    class Hears(Hook):
        def note(self, text: str) -> None:
            heard.append(text)

    several = Hooks([Broken(), Broken(), Hears()])
    several.locate(Path())
    several.note("go on")
    assert [type(hook) for hook in several.hooks] == [Hears]
    assert heard[-1] == "go on"


def test_a_pipe_that_closes_while_models_load_stops_the_run_once_it_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed(Hook):
        def working(self, progress: Progress) -> None:
            raise BrokenPipeError

    received: list[int] = []
    outlet = Outlet(Closed())
    monkeypatch.setattr(os, "kill", lambda process, kind: received.append(kind))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        outlet.working(Progress("loading"))
        assert (outlet.gone, received) == (True, [])
        signal.signal(signal.SIGTERM, lambda kind, frame: None)
        outlet.working(Progress("playing"))
        outlet.working(Progress("playing"))
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nothing_is_printed_where_nobody_looks_on(
    untaught: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comas.train(**ONE_STEP, hosts__home__base=str(untaught), out=str(tmp_path / "r"))
    assert capfd.readouterr() == ("", "")


def test_who_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    assert watching.onlooker() is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert watching.onlooker() == "terminal"
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(watching.onlooker()))
    thread.start()
    thread.join()
    assert elsewhere == [None]
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert watching.onlooker() is None
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    assert watching.onlooker() == "notebook"
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr(sys, "stderr", None)
    assert watching.onlooker() is None


def test_hooks_of_ones_own_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "onlooker", lambda: "terminal")
    mine = [Hook()]
    with watching.shown(mine) as hooks:
        assert hooks is mine
    with watching.shown([]) as hooks:
        assert hooks == []


def test_a_notebook_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "onlooker", lambda: "notebook")
    with watching.shown(None) as (watch,):
        watch.working(Progress("loading"))
        watch.note("a word")
    assert capsys.readouterr().out.splitlines() == ["loading the models", "note: a word"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_script_on_a_terminal_gets_lines_and_a_live_one(untaught: Path, tmp_path: Path) -> None:
    import pty

    pairs = {**ONE_STEP, "hosts__home__base": str(untaught), "out": str(tmp_path / "r")}
    code = f"import comas; print(comas.train(**{pairs!r}).steps, 'steps')"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        text=True,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        assert process.stdout is not None
        assert process.stdout.read() == "1 steps\n"
    os.close(ours)
    assert process.returncode == 0
    # the live line is drawn a few times per second: a short stage may pass between two frames
    stages = ("estimating memory", "loading the models", "accuracy before training")
    assert any(stage in shown.decode() for stage in stages)
    assert "step 1/1" in shown.decode()
