"""A host whose weights are a chain of digests, and disks that fail on demand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import read
from comas.hooks import Hook
from comas.storage import files
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.testing import Scripted, golden_script
from comas.training.start import resume_async, train_async

KIND = f"hosts.home.kind={Path(__file__).with_name('chained.py')}"
KEYS = [
    KIND,
    "steps=5",
    "task_options.largest=8",
    "questions=3",
    "test_questions=3",
    "eval_questions=3",
    "eval_every=2",
    "checkpoint_every=2",
]


class Crash(BaseException):
    """The power is gone."""


class Chained(Scripted):
    """What it says depends on all that it was ever paid: a step lost, doubled or changed shows in
    every later text.
    """

    def __init__(self) -> None:
        super().__init__(self.say, name="home")
        self.state = dict.fromkeys((f"a{i}" for i in range(4)), "start")

    def say(self, policy: str, role: str, prompt: str, seed: int) -> str:
        number = int(hashlib.sha256(f"{self.state[policy]} {seed}".encode()).hexdigest(), 16)
        return golden_script(policy, role, prompt, number % 1000)

    async def learn(self, payoffs: Any, lr_scale: float) -> Any:
        for policy, paid in payoffs.items():
            told = repr((self.state[policy], [(p.turn, p.reward) for p in paid]))
            self.state[policy] = hashlib.sha256(told.encode()).hexdigest()
        return await super().learn(payoffs, lr_scale)

    async def save(self, path: Path) -> None:
        (path / "state.json").write_text(json.dumps([self.state, self.versions]))

    async def load(self, path: Path) -> None:
        self.state, self.versions = json.loads((path / "state.json").read_text())


class Faults:
    """Counts what reaches the disk, and dies at operation number `at`: before it, or halfway
    through; then nothing works.
    """

    def __init__(self, at: int | None = None, halfway: bool = False) -> None:
        self.at = at
        self.halfway = halfway
        self.count = 0
        self.dead = False
        self.names: list[str] = []

    def wrap(
        self, name: str, real: Callable[..., Any], half: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crash(name)
            self.names.append(name)
            if self.count == self.at:
                self.dead = True
                if self.halfway and half is not None:
                    half(*args, **kwargs)
                raise Crash(name)
            self.count += 1
            return real(*args, **kwargs)

        return act

    @contextmanager
    def watching(self) -> Iterator[Faults]:
        """Everything in comas that changes the disk goes through these."""
        write = Path.write_text
        append = files.append
        remove = shutil.rmtree

        def half_removed(path: Path, *_: Any, **__: Any) -> None:
            for file in sorted(p for p in Path(path).rglob("*") if p.is_file())[:1]:
                os.unlink(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Path,
                "write_text",
                self.wrap(
                    "write", write, lambda p, text, *a, **k: write(p, text[: len(text) // 2])
                ),
            )
            patch.setattr(
                files,
                "append",
                self.wrap("append", append, lambda p, text: append(p, text[: len(text) // 2])),
            )
            patch.setattr(files, "truncate", self.wrap("truncate", files.truncate))
            patch.setattr(os, "replace", self.wrap("rename", os.replace))
            patch.setattr(os, "fsync", self.wrap("fsync", os.fsync))
            patch.setattr(Path, "unlink", self.wrap("unlink", Path.unlink))
            patch.setattr(shutil, "rmtree", self.wrap("rmtree", remove, half_removed))
            yield self


def start(folder: Path) -> None:
    pairs = [*KEYS, f"out={folder}"]
    run_sync(train_async(read(None, pairs), Hook()))


def go_on(folder: Path) -> None:
    """What a user does: resume, or remove what is no run yet and start."""
    if (folder / "config.toml").exists():
        run_sync(resume_async(folder, Hook()))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        start(folder)


def story(folder: Path) -> Any:
    """All that a run is: texts, rewards, metrics but times, accuracies, and the last state."""
    run = Run.open(folder)
    metrics = [
        {k: v for k, v in m.items() if k not in ("seconds", "spent", "peak_bytes")}
        for m in run.metrics()
    ]
    for row in (row for m in metrics for row in m["cost"]):
        del row["seconds"]
    steps = range(len(metrics))
    talk = [
        [
            (t["id"], t["text"], t["reward"], t["version"])
            for e in run.episodes(s)
            for t in e["turns"]
        ]
        for s in steps
    ]
    answers = [
        [(a["question"], a["verdict"]) for a in (run.read_eval(n) or {})["answers"]]
        for n in ("before", "after")
    ]
    # seconds have more or fewer digits
    marker = {k: v for k, v in (run.marker() or {}).items() if k != "metrics_bytes"}
    return metrics, talk, answers, marker, (run.intact() / "state.json").read_text()


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Any, list[str]]:
    with Faults().watching() as faults:
        start(tmp_path / "whole")
    return story(tmp_path / "whole"), faults.names
