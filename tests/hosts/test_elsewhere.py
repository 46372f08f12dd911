"""Runs whose hosts are elsewhere: the same texts, rewards and weights bit by bit, wherever a host
lives and wherever a run goes on; deaths end it in a line and lose nothing that was committed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.config.resolve import resolve
from comas.config.schema import read
from comas.estimate import filled
from comas.storage.run import Run
from comas.team.build import build_team
from comas.testing import check_host
from comas.types import UserMistake
from tests.support.command import run as run_command
from tests.support.remembering import METHOD
from tests.support.runs import SMALL, essence

KEYS: dict[str, Any] = {**SMALL, "eval_every": 0, "test_questions": 0, "checkpoint_every": 1}
TWO = {"left": {}, "right": {}}
DEADLINE = 120.0


def trained(folder: Path, base: Path, where: str = "here", **changes: Any) -> Run:
    """A run of two hosts, both at the same kind of place."""
    hosts = {name: {"base": str(base), "where": where} for name in TWO}
    for key in [key for key in changes if key.startswith("host_")]:
        for table in hosts.values():
            table[key.removeprefix("host_")] = changes[key]
        del changes[key]
    comas.train(out=str(folder), hosts=hosts, **{"steps": 3, **KEYS, **changes})
    return Run(folder)


ENGINE = """
from comas.engines.hf import build
"""


@pytest.mark.parametrize("learner", ["full", "adapters"])
def test_the_same_bits_here_and_in_processes(learner: str, untaught: Path, tmp_path: Path) -> None:
    here = trained(tmp_path / "here", untaught, host_learner=learner)
    there = trained(tmp_path / "there", untaught, "process", host_learner=learner)
    assert essence(there) == essence(here)
    facts = json.loads((there.path / "processes.json").read_text())["processes"][-1]
    assert facts["where"] == "left: process, right: process"


def test_the_contract_of_hosts(untaught: Path) -> None:
    hosts = {"home": {"base": str(untaught), "where": "process"}}
    resolved = resolve(read(None, {"hosts": hosts, "lr": 1e-3, "threads": 1}))
    team = build_team(filled(resolved, True))
    try:
        asyncio.run(asyncio.wait_for(check_host(team.hosts["home"], "a0", team.method), DEADLINE))
    finally:
        team.close()


def test_files_of_ones_own_travel(
    untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remembering.py").write_text(METHOD)
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)
    changes: dict[str, Any] = {
        "method": "remembering.py",
        "host_engine": "engine.py",
        "options": {},
        "options__format_check": None,
        "room": {"solution": 12},
    }
    del changes["options__format_check"]
    keys = {key: value for key, value in KEYS.items() if key != "options__format_check"}
    monkeypatch.setattr(sys.modules[__name__], "KEYS", keys)
    here = trained(tmp_path / "here", untaught, **changes)
    there = trained(tmp_path / "there", untaught, "process", **changes)
    assert essence(there) == essence(here)


@pytest.mark.slow
def test_a_run_goes_on_at_another_place(untaught: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", untaught, steps=3)
    trained(tmp_path / "parts", untaught, "process", steps=1)
    comas.resume(tmp_path / "parts", steps=2, hosts__left__where="here", hosts__right__threads=1)
    comas.resume(tmp_path / "parts", steps=3, hosts__left__where="process")
    assert essence(Run.open(tmp_path / "parts")) == essence(whole)


def test_a_trained_team_is_asked_elsewhere(untaught: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", untaught, steps=1)
    here = comas.load(run.path)
    said = here.discuss("1 2 4 -> 7", seed=1)
    here.close()
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('where = "here"', 'where = "process"'))
    there = comas.load(run.path)
    again = there.discuss("1 2 4 -> 7", seed=1)
    there.close()
    assert there.hosts["left"].facts()["where"] == "process"
    assert [turn.text for turn in again.turns] == [turn.text for turn in said.turns]


# --- mistakes, one line each, before anything is loaded


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        (["where=nowhere"], "hosts.home.where = 'nowhere'"),
        (["where=./mine.py"], "no such file"),
        (["hosts.home.threads=2"], "hosts.home.threads is for a host elsewhere"),
        (["address=10.0.0.1:6379"], "hosts.home.address is for a host elsewhere"),
        (["where=process", "patience=0"], "patience"),
        (["where=process", "base=./nothing"], "./nothing"),
    ],
)
def test_mistakes(
    pairs: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run_command(["train", "out=run", "steps=1", *pairs], monkeypatch)
    err = capfd.readouterr().err
    assert code == 2
    assert line in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("cuda:one", "hosts.home.device = 'cuda:one': wanted is auto, cpu, mps, cuda or"),
        ("cuda:99", "hosts.home.device=cuda:99: 0 GPUs can be seen here: set a lower number or"),
    ],
)
def test_a_device_that_is_not_here_is_one_line(
    device: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert run_command(["play", f"device={device}", "where=process"], monkeypatch) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert line in error


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_not_installed(untaught: Path, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r'pip install "comas\[ray\]"'):
        trained(tmp_path / "run", untaught, "ray")


def test_a_host_behind_an_api_is_elsewhere_already(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"hosts.judge.where is for hosts with weights"):
        comas.train(
            out=str(tmp_path / "run"),
            hosts={"home": {}, "judge": {"api": "http://127.0.0.1:9/v1", "where": "process"}},
        )


# --- deaths


def command(folder: Path, base: Path, steps: int) -> list[str]:
    hosts = [f"hosts.{n}.{k}" for n in TWO for k in (f"base={base}", "where=process")]
    pairs = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in KEYS.items()]
    start = [sys.executable, "-m", "comas", "train", f"out={folder}", f"steps={steps}"]
    return [*start, *hosts, *pairs]


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def killed(
    arguments: list[str], whom: str, after: float, rng: random.Random
) -> tuple[int, str, list[int]]:
    """Exit code, stderr, and what is left of a run, part of which is killed some time after its
    hosts have started."""
    run = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + DEADLINE
    hosts: list[int] = []
    while len(hosts) < 2 and run.poll() is None and time.monotonic() < until:
        hosts = [pid for pid in children_of(run.pid) if b"comas.transports" in _cmdline(pid)]
        time.sleep(0.02)
    time.sleep(after)
    victims = {"host": [rng.choice(hosts)] if hosts else [], "driver": [run.pid]}
    victims["both"] = [*victims["host"], run.pid]
    for pid in victims[whom]:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    _, err = run.communicate(timeout=DEADLINE)
    until = time.monotonic() + DEADLINE
    while any(map(alive, hosts)) and time.monotonic() < until:
        time.sleep(0.05)
    return run.returncode, err, [pid for pid in hosts if alive(pid)]


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(["host"], id="once"),
        pytest.param(["host", "driver", "both", "host"] * 5, id="twenty", marks=pytest.mark.slow),
    ],
)
def test_kills_lose_nothing_that_was_committed(
    kills: list[str], untaught: Path, tmp_path: Path
) -> None:
    whole = trained(tmp_path / "whole", untaught, steps=8)
    folder = tmp_path / "run"
    rng = random.Random(len(kills))
    committed = 0
    for whom in kills:
        if (folder / "config.toml").exists():
            arguments = [sys.executable, "-m", "comas", "resume", str(folder)]
        else:
            shutil.rmtree(folder, ignore_errors=True)
            arguments = command(folder, untaught, 8)
        code, err, left = killed(arguments, whom, rng.uniform(0.0, 6.0), rng)
        assert not left, "a host outlives its run"
        if whom == "host" and code != 0:
            assert code == 2, err
            lost = [line for line in err.splitlines() if line.startswith("error:")]
            assert len(lost) == 1, err
            assert "is lost: its process was ended by SIGKILL" in lost[0]
            assert "Traceback" not in err
        marker = Run(folder).marker() if (folder / "config.toml").exists() else None
        now = 0 if marker is None else marker["step"]
        assert now >= committed, "a commit was lost"
        committed = now
    if (folder / "config.toml").exists():
        comas.resume(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        trained(folder, untaught, "process", steps=8)
    assert essence(Run.open(folder)) == essence(whole)
