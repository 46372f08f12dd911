"""Real runs that play ahead: learning beside playing, stops and kills change no bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.hooks import Hook
from comas.storage.run import Run
from tests.support.runs import SMALL, Killed, essence, run_of

KEYS: dict[str, Any] = {"ahead": 1, "steps": 6, "checkpoint_every": 4, "eval_every": 4}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "whole, hf": {"hosts__home__engine": "hf"},
    "adapters": {"hosts__home__learner": "adapters"},
    "adapters, hf": {"hosts__home__learner": "adapters", "hosts__home__engine": "hf"},
}
SERVED = [0, 0, 1, 2, 4, 4]
"""Step -> learning steps behind who plays it."""


class Stopping(Hook):
    """Ctrl-C at the first turn of a step."""

    def __init__(self, step: int) -> None:
        self.at = f"{step}/"
        self.sent = False

    def turn(self, turn: Any) -> None:
        if turn.id.startswith(self.at) and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def numbers(run: Run) -> list[dict[str, Any]]:
    """The metrics but for times."""
    lines = [
        {k: v for k, v in line.items() if k not in ("seconds", "spent", "peak_bytes")}
        for line in run.metrics()
    ]
    for row in (row for line in lines for row in line["cost"]):
        del row["seconds"]
    return lines


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_resumed_is_the_uninterrupted_run(
    kind: str, untaught: Path, tmp_path: Path
) -> None:
    keys = {**KEYS, **KINDS[kind]}
    whole = run_of(tmp_path / "whole", untaught, **keys)
    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run_of(folder, untaught, **keys, hooks=[Stopping(2)])
    marker = Run(folder).marker()
    assert marker is not None
    assert marker["step"] == 2
    assert (folder / "checkpoints" / "step-2" / "home.served.safetensors").is_file()
    with pytest.raises(KeyboardInterrupt):
        comas.resume(str(folder), hooks=[Stopping(5)])
    comas.resume(str(folder))
    cut = Run(folder)
    assert numbers(cut) == numbers(whole)
    assert essence(cut) == essence(whole)
    # who was never paid in a step has learnt one step less
    versions = [max(t["version"] for e in cut.episodes(s) for t in e["turns"]) for s in range(6)]
    assert versions == SERVED
    again = run_of(tmp_path / "again", untaught, **keys)
    assert essence(again) == essence(whole)
    assert essence(run_of(tmp_path / "not", untaught, **{**keys, "ahead": 0})) != essence(whole)


def test_a_process_that_dies_goes_back_to_a_checkpoint_and_changes_nothing(
    untaught: Path, tmp_path: Path
) -> None:
    class Killing(Hook):
        def step(self, metrics: Any, episodes: Any) -> None:
            if metrics["step"] == 4:  # written, and the next one was played
                raise Killed

    whole = run_of(tmp_path / "whole", untaught, **KEYS)
    with pytest.raises(Killed):
        run_of(tmp_path / "cut", untaught, **KEYS, hooks=[Killing()])
    assert (Run(tmp_path / "cut").marker() or {})["step"] == 4
    comas.resume(str(tmp_path / "cut"))
    assert essence(Run(tmp_path / "cut")) == essence(whole)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills of POSIX")
def test_kills_and_interrupts_at_random_times_change_nothing(
    untaught: Path, tmp_path: Path
) -> None:
    keys = {**SMALL, **KEYS, "steps": 14}
    pairs = [f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in keys.items() if v is not None]
    pairs.append(f"hosts.home.base={untaught}")
    program = [sys.executable, "-m", "comas"]
    whole = tmp_path / "whole"
    began = time.monotonic()
    subprocess.run([*program, "train", *pairs, f"out={whole}"], check=True, capture_output=True)
    length = time.monotonic() - began
    expected = essence(Run.open(whole))
    rng = random.Random(0)
    folder = tmp_path / "cut"
    kinds = [signal.SIGINT, signal.SIGKILL]
    for place in range(10):
        there = (folder / "config.toml").exists()
        command = ["resume", str(folder)] if there else ["train", *pairs, f"out={folder}"]
        process = subprocess.Popen([*program, *command], stderr=subprocess.PIPE, text=True)
        try:
            process.wait(rng.uniform(0.4, 1.0) * length)
        except subprocess.TimeoutExpired:
            process.send_signal(kinds[place % 2])
        _, errors = process.communicate(timeout=600)
        if process.returncode == 0:
            break
        # SIGINT while Python starts is nobody's to catch
        assert process.returncode in (-signal.SIGKILL, -signal.SIGINT, 130), errors
    else:
        subprocess.run([*program, "resume", str(folder)], check=True, capture_output=True)
    assert essence(Run.open(folder)) == expected


def test_a_team_that_plays_ahead_learns(tmp_path: Path) -> None:
    """Pay rises on the shipped seed model, whose rules are known."""
    keys: dict[str, Any] = {"steps": 14, "questions": 24, "lr": 1e-3, "seed": 5}
    comas.train(
        method="rlvr",
        agents=1,
        samples=4,
        ahead=1,
        threads=1,
        test_questions=0,
        eval_every=0,
        checkpoint_every=6,
        out=str(tmp_path / "run"),
        **keys,
    )
    paid = [line["rewards"]["solution"] for line in Run(tmp_path / "run").metrics()]
    assert sum(paid[-3:]) > sum(paid[:3]) + 0.15, paid
