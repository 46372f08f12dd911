"""The real libraries, offline: a killed and resumed run leaves each of its steps once in each."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import pytest

from comas.storage.rewind import rewind
from comas.storage.run import Run
from tests.support.run_folders import checkpoint, step
from tests.support.tracking import commit

pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("default")]
Steps = list[tuple[int, float]]
"""Step and value of one figure."""


def installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(params=["tensorboard", "trackio", "mlflow", "wandb"])
def name(request: pytest.FixtureRequest) -> str:
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed: make test-trackers")
    return request.param


TRACKED = """
import os, sys, time
from pathlib import Path
from comas.storage.run import Run
from comas.stats import Interval
from comas.config.plugins import load_plugin
from comas.trackers.sink import Tracker

path, name, start, dies = sys.argv[1:]
tracker = Tracker(name, load_plugin("tracker", name).open)
tracker.tell = sys.exit

def send(metrics, send=tracker._send):
    before = tracker.sent
    send(metrics)
    if tracker.sent == int(dies) != before:
        time.sleep(2)  # W&B offline keeps what is half a second old
        os.kill(os.getpid(), 9)

tracker._send = send
tracker.begin(Run.open(path), None, int(start))
{events}
tracker.ended(None)
"""
"""A process that is killed right behind step `dies`."""


def track(run: Run, name: str, start: int, dies: int = -1, events: str = "") -> int:
    """A process that sends the run up to step `start`; exit code."""
    environment = {
        **os.environ,
        "TRACKIO_DIR": str(run.path.parent / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{run.path.parent / 'mlflow.db'}",
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
    }
    program = TRACKED.replace("{events}", events)
    words = [sys.executable, "-c", program, str(run.path), name, str(start), str(dies)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def of_tensorboard(run: Run, figure: str) -> Steps:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stored = EventAccumulator(str(run.path / "track" / "tensorboard"), {"scalars": 0}).Reload()
    return [(scalar.step, scalar.value) for scalar in stored.Scalars(figure)]


def of_trackio(run: Run, figure: str) -> Steps:
    (path,) = (run.path.parent / "trackio").glob("comas*.db")
    with sqlite3.connect(path) as store:
        rows = store.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    found = [(number, json.loads(metrics)) for number, metrics in rows]
    return [(number, metrics[figure]) for number, metrics in found if figure in metrics]


def of_mlflow(run: Run, figure: str) -> Steps:
    with sqlite3.connect(run.path.parent / "mlflow.db") as store:
        query = "SELECT step, value FROM metrics WHERE key = ? ORDER BY step"
        return store.execute(query, (figure,)).fetchall()


def records_of_wandb(data: bytes) -> Iterator[bytes]:
    """The whole records of an offline file, a log as LevelDB writes it: in each block of 32 KiB a
    record, or a part of one, stands behind 4 bytes of checksum, 2 of length and 1 of kind.
    """
    place = 7  # behind the file's own header
    parts: list[bytes] = []
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += 7
        if kind == 0 or place + length > len(data):
            return
        parts.append(data[place : place + length])
        place += length
        if kind in (1, 4):  # in one part, or the last of several
            yield b"".join(parts)
            parts = []


def of_wandb(run: Run, figure: str) -> Steps:
    """What its offline files hold. A step whose process died between sending and noting it may
    stand in two of them, with the same number.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    rows: Steps = []
    for path in sorted((run.path / "track" / "wandb").glob("**/offline-run-*/*.wandb")):
        for part in records_of_wandb(path.read_bytes()):
            record: Any = Record.FromString(part)
            for item in record.history.item:
                if (item.key or item.nested_key[0]) == figure:
                    rows.append((record.history.step.num, json.loads(item.value_json)))
    assert len(rows) - len(set(rows)) <= 1
    return sorted(set(rows))


READ: Mapping[str, Callable[[Run, str], Steps]] = {
    "tensorboard": of_tensorboard,
    "trackio": of_trackio,
    "mlflow": of_mlflow,
    "wandb": of_wandb,
}


BEFORE = "tracker.measured('before', 0, Interval(0.25, 0.1, 0.4, 8))"
AFTER = "tracker.measured('after', 7, Interval(0.5, 0.1, 0.9, 8))"


def test_a_killed_and_resumed_run_is_stored_once(run: Run, name: str) -> None:
    checkpoint(run, 0)
    commit(run, 0, 2)
    step(run, 2)
    track(run, name, 3, events=BEFORE)
    assert rewind(run)[0] == 2
    commit(run, 2, 6)
    assert track(run, name, 6, dies=4) == -9
    commit(run, 6, 7)
    track(run, name, 7, events=AFTER)
    track(run, name, 7)
    read = READ[name]
    assert read(run, "tokens") == [(number, number - 1) for number in range(1, 8)]
    if name != "wandb":  # where accuracies stand in the summary
        assert read(run, "before/mean") == [(0, 0.25)]
        assert read(run, "after/mean") == [(7, 0.5)]


def test_a_line_of_a_real_run_is_taken_whole(run: Run, name: str) -> None:
    checkpoint(run, 0)
    line = {
        "step": 0,
        "tokens": 5,
        "rewards": {"solution": 0.5},
        "coverage": {"pass@1": 0.25},
        "policies": {"home/a0": {"lr": 0.125, "loss": float("nan")}},
    }
    run.write_step(line, [])
    checkpoint(run, 1)
    track(run, name, 1)
    at = "_" if name == "mlflow" else "@"  # which allows no @ in a name
    read = READ[name]
    assert read(run, "rewards/solution") == [(1, 0.5)]
    assert read(run, f"coverage/pass{at}1") == [(1, 0.25)]
    assert read(run, "policies/home/a0/lr") == [(1, 0.125)]


@pytest.mark.skipif(not installed("wandb"), reason="wandb is not installed: make test-trackers")
def test_wandb_tells_nothing_of_the_machine(run: Run) -> None:
    checkpoint(run, 0)
    commit(run, 0, 1)
    track(run, "wandb", 1)
    folder = run.path / "track" / "wandb"
    (kept,) = folder.glob("**/offline-run-*/*.wandb")
    stored = kept.read_bytes()
    name = socket.gethostname().encode()
    assert bytes([len(name)]) + name not in stored  # a text of the protocol: its length first
    assert sys.executable.encode() not in stored
    assert not list(folder.glob("**/requirements.txt"))
