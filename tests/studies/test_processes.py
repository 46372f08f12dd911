"""Studies in real processes: killed in the middle and gone on with, stopped, and their children."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.studies import small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="kills of POSIX"),
]
FILES = ("report.md",)
CELL = [sys.executable, "-m", "comas.cli.entry"]


def comas(file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "comas", "study", file.name, "--jobs", "2"]
    return subprocess.Popen(
        command, cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def alone(folder: Path) -> Path:
    """The same study file in a folder of its own, its report being of the same bytes."""
    folder.mkdir()
    file = small(folder)
    file.write_text(file.read_text().replace(str(folder / "small"), "out"))
    return file


def test_a_study_that_is_killed_at_random_gives_the_same_report(tmp_path: Path) -> None:
    undisturbed = alone(tmp_path / "undisturbed")
    began = time.monotonic()
    whole = comas(undisturbed)
    _, err = whole.communicate()
    assert whole.returncode == 0, err
    length = time.monotonic() - began
    killed = alone(tmp_path / "killed")
    rng = random.Random(0)
    kills = 0
    while True:
        process = comas(killed)
        try:
            # every try gets further than the one before
            process.wait(rng.uniform(0.2, 0.4) * length * (1 + kills))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, err = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, err
    assert kills > 0
    for name in FILES:
        assert (killed.parent / "out" / name).read_bytes() == (
            undisturbed.parent / "out" / name
        ).read_bytes()


def test_ctrl_c_is_130_and_leaves_no_process_behind(tmp_path: Path) -> None:
    file = alone(tmp_path / "stopped")
    process = comas(file)
    run = file.parent / "out" / "cells" / "labels" / "1" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (run.is_file() and run.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped; go on with: " in err
    record = json.loads((file.parent / "out" / "study.json").read_text())
    assert {row["status"] for row in record["rows"]} <= {"done", "missing"}
    assert "not finished" in {row["reason"] for row in record["rows"]}


def test_the_process_of_a_cell_ends_with_its_stdin() -> None:
    with subprocess.Popen(
        [*CELL, "--version"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as held:
        assert held.wait(120) == 0
        assert held.stdout is not None
        assert held.stdout.read().strip()
    code = "import time; from comas.cli import entry; entry.main = lambda: time.sleep(600); "
    waiting = subprocess.Popen([sys.executable, "-c", code + "entry.cell()"], stdin=subprocess.PIPE)
    assert waiting.stdin is not None
    waiting.stdin.close()
    assert waiting.wait(120) == 130
