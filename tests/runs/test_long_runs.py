"""Runs that go on for long, and hosts that go wrong: what is counted, what ends a run, and whose
name is told.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comas.config.schema import read
from comas.hooks import Hook
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.loop import Session
from comas.training.start import resume_async, train_async
from comas.types import Ask, HostFailure, UserMistake
from tests.support.faults import KEYS, KIND, Chained
from tests.support.kinds import kind_of


class Notes(Hook):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


class Gauge(Hook):
    """Objects alive and files open at chosen steps, and Python calls of the hundred steps after
    each.
    """

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.objects = []
        self.files = []
        self.calls = []
        self.counted = 0

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self.counted += event == "call"

    def step(self, metrics: Mapping[str, Any], episodes: Any) -> None:
        if metrics["step"] - 100 in self.steps:
            sys.setprofile(None)
            self.calls.append(self.counted)
        if metrics["step"] in self.steps:
            gc.collect()
            self.objects.append(len(gc.get_objects()))
            self.files.append(
                len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
            )
            self.counted = 0
            sys.setprofile(self._count)


@pytest.mark.slow
def test_two_thousand_steps_cost_no_more_at_the_end_than_at_the_start(
    tmp_path: Path,
) -> None:
    gauge = Gauge(150, 1850)
    pairs = [
        KIND,
        "steps=2000",
        "questions=1",
        "test_questions=1",
        "eval_every=0",
        "checkpoint_every=100",
        "task_options.largest=8",
    ]
    run_sync(train_async(read(None, [*pairs, f"out={tmp_path / 'r'}"]), gauge))
    assert len(list(Run.open(tmp_path / "r").metrics())) == 2000
    assert len(list((tmp_path / "r" / "checkpoints").iterdir())) == 2
    (objects, later_objects), (files, later_files), (calls, later_calls) = (
        gauge.objects,
        gauge.files,
        gauge.calls,
    )
    assert later_objects < 1.01 * objects
    assert later_files == files
    assert later_calls < 1.1 * calls


class Broken(Chained):
    """Policy a1 never gets a finite gradient from step `since` on."""

    since = 1

    async def learn(self, payoffs: Any, lr_scale: float) -> Any:
        stats, told = await super().learn(payoffs, lr_scale)
        self.learnt = getattr(self, "learnt", -1) + 1
        if "a1" in stats and self.learnt >= self.since:
            stats["a1"] |= {"skipped": 1.0, "updates": 0.0}
        return stats, told


def test_three_broken_updates_in_a_row_end_the_run_and_name_step_and_policy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [
        f"hosts.home.kind={kind_of(Broken, tmp_path)}",
        "steps=20",
        "questions=8",
        "test_questions=3",
        "eval_every=0",
        "checkpoint_every=100",
        f"out={tmp_path / 'r'}",
    ]
    notes = Notes()
    with pytest.raises(
        UserMistake,
        match=r"step 4: .*policy home/a1 .* 3 steps",
    ):
        run_sync(train_async(read(None, pairs), notes))
    run = Run.open(tmp_path / "r")
    assert [text[:6] for text in notes.told if "learnt nothing" in text] == ["step 2"]
    assert [m["policies"]["home/a1"].get("skipped", 0) for m in run.metrics()] == [0, 1, 1, 1]
    assert (run.marker() or {})["step"] == 4  # what the others learnt is kept
    monkeypatch.setattr(Broken, "since", 0)
    # a resume does not begin to count anew
    with pytest.raises(UserMistake, match="in 4 steps in a row"):
        run_sync(resume_async(tmp_path / "r", Hook()))


def test_validation_draws_anew_after_every_so_many_steps_and_the_first_best_is_kept(
    tmp_path: Path,
) -> None:
    host = Chained()
    host.script = lambda *_: "I do not know"  # no validation is better than another one
    pairs = [
        f"hosts.home.kind={kind_of(lambda: host, tmp_path)}",
        "steps=5",
        "questions=3",
        "test_questions=3",
        "eval_questions=3",
        "eval_every=2",
        "checkpoint_every=100",
        f"out={tmp_path / 'r'}",
    ]
    run_sync(train_async(read(None, pairs), Hook()))
    run = Run.open(tmp_path / "r")
    assert [m["step"] + 1 for m in run.metrics() if m.get("validation")] == [2, 4]
    assert run.best() == 2
    assert run.intact(2).is_dir()
    seeds = [seed for turn, *_, seed in host.asked if turn.startswith("validation")]
    assert len(set(seeds)) == len(seeds) > 0


def test_steps_without_an_update_are_counted_in_a_row() -> None:
    session: Any = SimpleNamespace(tokens=0, best=(-1.0, None), skipped={})
    for step, skipped in enumerate((1, 1, 0, 1)):
        policies = {"home/a1": {"skipped": skipped}}
        Session._count(session, {"step": step, "tokens": 0, "policies": policies})
    assert session.skipped == {"home/a1": 1}


@pytest.mark.parametrize(("tokens", "spent"), [(None, False), (11, False), (10, True)])
def test_a_budget_of_tokens_is_spent_when_it_is_reached(tokens: int | None, spent: bool) -> None:
    session: Any = SimpleNamespace(tokens=10, config=SimpleNamespace(tokens=tokens))
    assert Session._spent(session) is spent


def test_where_the_best_checkpoint_was_lost_a_worse_one_than_the_next_best_is_not_the_best(
    tmp_path: Path,
) -> None:
    data = tmp_path / "mine.jsonl"
    rows = [{"question": f"What is {n} plus {7 - n}?", "answer": "7"} for n in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    right = {"a0", "a1", "a2", "a3"}
    host = Chained()
    host.script = lambda policy, *_: "\\boxed{7}" if policy in right else "\\boxed{8}"
    pairs = [
        f"hosts.home.kind={kind_of(lambda: host, tmp_path)}",
        "task=jsonl",
        f"data={data}",
        "steps=2",
        "questions=3",
        "test_questions=0",
        "eval_questions=3",
        "eval_every=1",
        f"out={tmp_path / 'r'}",
    ]
    run_sync(train_async(read(None, pairs), Hook()))
    run = Run.open(tmp_path / "r")
    assert run.best() == 1
    shutil.rmtree(run.path / "checkpoints" / "step-1")
    for steps, still_right in ((3, {"a0"}), (4, set())):
        right &= still_right
        run_sync(resume_async(run.path, Hook(), changes={"steps": steps}))
    means = [metrics["validation"]["mean"] for metrics in run.metrics()]
    assert means == [1.0, 1.0, 0.25, 0.0]
    assert run.best() == 3


class Dying(Chained):
    """A machine that fails in one of its duties."""

    duty = "ask"
    error = HostFailure("connection reset")

    async def ask(self, ask: Ask) -> Any:
        if self.duty == "ask":
            raise self.error
        return await super().ask(ask)

    async def learn(self, payoffs: Any, lr_scale: float) -> Any:
        if self.duty == "learn":
            raise self.error
        return await super().learn(payoffs, lr_scale)

    async def save(self, path: Path) -> None:
        if self.duty == "save" and self.versions:
            raise self.error
        await super().save(path)


@pytest.mark.parametrize(
    ("duty", "said"),
    [
        ("ask", r"every discussion failed; the first: host home, turn 0/.*: connection reset"),
        ("learn", r"host home, learning of step 1: connection reset"),
        ("save", r"host home, saving step 2: connection reset"),
    ],
)
def test_a_host_that_dies_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    duty: str,
    said: str,
) -> None:
    monkeypatch.setattr(Dying, "duty", duty)
    kind = f"hosts.home.kind={kind_of(Dying, tmp_path)}"
    with pytest.raises((HostFailure, UserMistake), match=said):
        run_sync(
            train_async(
                read(None, [*KEYS, kind, "test_questions=0", f"out={tmp_path / 'r'}"]),
                Hook(),
            )
        )


def test_an_error_in_a_game_loses_no_step_that_was_learnt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Chained.ask

    async def ask(self: Chained, ask: Ask) -> Any:
        if ask.turn.startswith("7/"):
            raise HostFailure("connection reset")
        return await real(self, ask)

    monkeypatch.setattr(Chained, "ask", ask)
    pairs = [
        KIND,
        "steps=20",
        "questions=2",
        "test_questions=0",
        "eval_every=0",
        "checkpoint_every=100",
        f"out={tmp_path / 'r'}",
    ]
    with pytest.raises(UserMistake, match="step 8: "):
        run_sync(train_async(read(None, pairs), Hook()))
    assert (Run.open(tmp_path / "r").marker() or {})["step"] == 7


def test_a_bug_in_a_host_keeps_its_traceback_and_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dying, "duty", "learn")
    monkeypatch.setattr(Dying, "error", ZeroDivisionError("a bug"))
    kind = f"hosts.home.kind={kind_of(Dying, tmp_path)}"
    with pytest.raises(ExceptionGroup) as caught:
        run_sync(
            train_async(
                read(None, [*KEYS, kind, "test_questions=0", f"out={tmp_path / 'r'}"]),
                Hook(),
            )
        )
    assert caught.value.exceptions[0].__notes__ == ["in host home, learning of step 1"]
