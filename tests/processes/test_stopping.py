"""Ctrl-C and SIGTERM: the first ends the step, the second gives it up, and nothing that was learnt
is lost either way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import read
from comas.hooks import Hook
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.start import train_async
from tests.support.faults import KEYS, Chained, go_on, story

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")


class Interrupting(Hook):
    """Sends `times` signals at the first turn of `step`."""

    def __init__(self, step: int, times: int, kind: int = signal.SIGINT) -> None:
        self.step_ = step
        self.left = times
        self.kind = kind
        self.notes = []

    def turn(self, turn: Any) -> None:
        while self.left and turn.id.startswith(f"{self.step_}/"):
            self.left -= 1
            os.kill(os.getpid(), self.kind)

    def note(self, text: str) -> None:
        self.notes.append(text)


def interrupted(folder: Path, watch: Hook) -> None:
    pairs = [*KEYS, f"out={folder}"]
    with pytest.raises(KeyboardInterrupt):
        run_sync(train_async(read(None, pairs), watch))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("step", "times", "kept"), [(2, 1, 3), (3, 1, 4), (2, 2, 2), (3, 2, 3), (4, 2, 4), (0, 2, 0)]
)
def test_one_signal_ends_the_step_and_two_give_it_up(
    whole: tuple[Any, list[str]],
    tmp_path: Path,
    kind: int,
    step: int,
    times: int,
    kept: int,
) -> None:
    watch = Interrupting(step, times, kind)
    before = signal.getsignal(kind)
    interrupted(tmp_path / "cut", watch)
    assert signal.getsignal(kind) is before
    run = Run.open(tmp_path / "cut")
    assert (run.marker() or {})["step"] == kept
    assert len(list(run.metrics())) == kept
    # the others are of what the team can learn, and of what monitors cannot see in so short a run
    signalled = [note for note in watch.notes if not note.startswith(("step ", "monitor "))]
    assert signalled[:1] == ["stopping after this step; once more gives it up"]
    go_on(tmp_path / "cut")
    assert story(tmp_path / "cut") == whole[0]


def test_a_signal_while_learning_waits_for_the_update(
    whole: tuple[Any, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Chained.learn
    calls = 0

    async def slow(self: Chained, payoffs: Any, method: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.01)
        return await real(self, payoffs, method)

    monkeypatch.setattr(Chained, "learn", slow)
    interrupted(tmp_path / "cut", Hook())
    monkeypatch.undo()
    assert (Run.open(tmp_path / "cut").marker() or {})["step"] == 4


def test_a_signal_while_measuring_stops_at_once(
    whole: tuple[Any, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Chained.ask
    asked = 0

    async def ask(self: Chained, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(5)
        return await real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Chained, "ask", ask)
        interrupted(tmp_path / "cut", Hook())
    assert Run.open(tmp_path / "cut").marker() is None
    go_on(tmp_path / "cut")
    assert story(tmp_path / "cut") == whole[0]


def test_in_a_notebook_an_interrupt_ends_the_thread_too(tmp_path: Path) -> None:
    main = threading.main_thread().ident or 0

    class Interrupts(Hook):
        def step(self, metrics: Any, episodes: Any) -> None:
            if metrics["step"] == 2:
                signal.pthread_kill(main, signal.SIGINT)

    # a loop is running already: the work goes to a thread, the interrupt to this one
    async def cell() -> None:
        pairs = [*KEYS, "steps=100000", f"out={tmp_path / 'r'}"]
        with pytest.raises(KeyboardInterrupt):
            run_sync(train_async(read(None, pairs), Interrupts()))

    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(cell())
    assert not [t for t in threading.enumerate() if t.name == "comas"]
    run = Run.open(tmp_path / "r")
    assert (run.marker() or {})["step"] == len(list(run.metrics()))


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    "kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_the_command_says_how_to_go_on_and_exits_130(
    untaught: Path, tmp_path: Path, kind: int
) -> None:
    folder = tmp_path / "a run"
    pairs = [
        f"out={folder}",
        f"hosts.home.base={untaught}",
        "lr=1e-3",
        "steps=100000",
        "questions=4",
        "test_questions=0",
        "eval_every=0",
        "threads=1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "comas", "train", *pairs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = folder / "metrics.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 2, process)
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err.strip().splitlines()[-1]
        == f"stopped; go on with: {sys.executable} -m comas resume '{folder}'"
    )
    assert "Traceback" not in err
    run = Run.open(folder)
    assert (run.marker() or {})["step"] == len(list(run.metrics())) > 2
