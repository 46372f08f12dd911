"""Real processes that die: twenty `kill -9` at random times, and a disk that takes no more."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from comas.storage.run import Run
from tests.support.remembering import METHOD
from tests.support.runs import SMALL, essence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="kills and limits of POSIX"),
]
COMAS = [sys.executable, "-m", "comas"]


def pairs(base: Path, folder: Path, **changes: object) -> list[str]:
    keys = {"steps": 12, **SMALL, "checkpoint_every": 1, "eval_every": 3, **changes}
    return [
        f"out={folder}",
        f"hosts.home.base={base}",
        *(f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in keys.items() if v is not None),
    ]


def comas(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMAS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


REMEMBERING = {
    "method": "remembering.py",
    "preset": None,
    "agents": 2,
    "options__format_check": None,
    "room__solution": 12,
    "schedule": "cosine",
    "warmup": 2,
}
"""A method whose texts, questions and rewards depend on all steps before, in a file."""


def all_of(run: Run) -> Any:
    """Texts, rewards, weights, and what the method remembers."""
    last = run.path / "checkpoints" / f"step-{(run.marker() or {})['step']}" / "state.json"
    return *essence(run), last.read_text() if last.exists() else None


@pytest.mark.parametrize("changes", [{}, REMEMBERING], ids=["comas", "remembering"])
def test_twenty_kills_change_nothing(
    changes: Mapping[str, Any], untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "remembering.py").write_text(METHOD)
    began = time.monotonic()
    subprocess.run(
        [*COMAS, "train", *pairs(untaught, tmp_path / "whole", **changes)],
        check=True,
        capture_output=True,
    )
    length = time.monotonic() - began
    rng = random.Random(0)
    kills = 0
    number = 0
    expected = all_of(Run.open(tmp_path / "whole"))
    assert (expected[-1] is not None) == bool(changes)
    while kills < 20:
        folder = tmp_path / f"killed-{number}"
        number = number + 1
        while True:
            there = (folder / "config.toml").exists()
            begin = ["train", *pairs(untaught, folder, **changes)]
            process = comas(*(["resume", str(folder)] if there else begin))
            try:
                process.wait(rng.uniform(0.3, 1.0) * length)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            _, err = process.communicate()
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, err
        assert all_of(Run.open(folder)) == expected


def test_a_disk_that_takes_no_more_is_one_line_and_then_nothing_is_lost(
    untaught: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    subprocess.run(
        [*COMAS, "train", *pairs(untaught, whole, steps=3)], check=True, capture_output=True
    )
    largest = max(p.stat().st_size for p in whole.rglob("*.safetensors"))

    def limit() -> None:  # no file larger than that: weights can be written, moments cannot
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, resource.RLIM_INFINITY))

    command = [*COMAS, "train", *pairs(untaught, cut, steps=3)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert str(cut) in done.stderr
    assert (Run.open(cut).marker() or {})["step"] == 0
    subprocess.run([*COMAS, "resume", str(cut)], check=True, capture_output=True)
    assert essence(Run.open(cut)) == essence(Run.open(whole))
