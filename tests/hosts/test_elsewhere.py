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
from comas.hooks import Hook
from comas.memory import bounds
from comas.storage.run import Run
from comas.team.build import build_team
from comas.testing import check_host
from comas.types import HostLost, UserMistake
from tests.support import runs
from tests.support.command import run as run_command
from tests.support.remembering import METHOD
from tests.support.runs import SMALL, essence

KEYS: dict[str, Any] = {**SMALL, "eval_every": 0, "test_questions": 0, "checkpoint_every": 1}
TWO = {"left": {}, "right": {}}
DEADLINE = 120.0


def trained(
    folder: Path, base: Path, left: str = "here", right: str = "here", **changes: Any
) -> Run:
    """A run of two hosts, each at its kind of place."""
    hosts = {"left": {"base": str(base), "where": left}}
    hosts["right"] = {"base": str(base), "where": right}
    comas.train(out=str(folder), hosts=hosts, **{"steps": 3, **KEYS, **changes})
    return Run(folder)


ENGINE = """
from comas.engines.hf import build
"""


@pytest.mark.slow
def test_the_same_bits_here_and_in_processes_with_files_of_ones_own(
    untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remembering.py").write_text(METHOD)
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)
    keys = {key: value for key, value in KEYS.items() if key != "options__format_check"}
    keys |= {"method": "remembering.py", "preset": None, "room": {"solution": 12}}
    keys |= {"steps": 2, "agents": 2}

    def run_at(where: str) -> Run:
        base = {"base": str(untaught), "where": where}
        left = {**base, "learner": "full", "engine": "engine.py"}
        hosts = {"left": left, "right": {**base, "learner": "adapters"}}
        comas.train(out=str(tmp_path / where), hosts=hosts, **keys)
        return Run(tmp_path / where)

    here, there = run_at("here"), run_at("process")
    assert essence(there) == essence(here)
    facts = json.loads((there.path / "processes.json").read_text())["processes"][-1]
    assert facts["where"] == "left: process, right: process"


@pytest.mark.slow
def test_the_contract_of_hosts(untaught: Path) -> None:
    hosts = {"home": {"base": str(untaught), "where": "process"}}
    resolved = runs.planned({"hosts": hosts, "lr": 1e-3, "threads": 1})
    team = build_team(bounds(resolved))
    try:
        asyncio.run(asyncio.wait_for(check_host(team.hosts["home"], "a0"), DEADLINE))
    finally:
        team.close()


def test_a_trained_team_is_asked_elsewhere(untaught: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", untaught, steps=1)
    here = comas.load(run.path)
    said = here.discuss("1 2 4 -> 7", seed=1)
    here.close()
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('where = "here"', 'where = "process"', 1))
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
        trained(tmp_path / "run", untaught, "ray", "ray")


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
        hosts = [pid for pid in children_of(run.pid) if _is_host(pid)]
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


def _is_host(pid: int) -> bool:
    try:
        return b"comas.transports" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_host_that_is_killed_loses_nothing_and_the_run_goes_on_at_another_place(
    untaught: Path, tmp_path: Path
) -> None:
    class Killing(Hook):
        def step(self, metrics: Any, episodes: Any) -> None:
            if metrics["step"] == 1:
                (host,) = [pid for pid in children_of(os.getpid()) if _is_host(pid)]
                os.kill(host, signal.SIGKILL)

    whole = trained(tmp_path / "whole", untaught)
    with pytest.raises(HostLost, match="is lost: its process was ended by SIGKILL"):
        trained(tmp_path / "run", untaught, "process", hooks=[Killing()])
    marker = Run(tmp_path / "run").marker()
    assert marker is not None
    assert marker["step"] in (1, 2)  # the step that was written may not be committed any more
    comas.resume(tmp_path / "run", hosts__left__where="here")
    assert essence(Run.open(tmp_path / "run")) == essence(whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_kills_lose_nothing_that_was_committed(untaught: Path, tmp_path: Path) -> None:
    kills = ["host", "driver", "both", "host"] * 5
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
        trained(folder, untaught, "process", "process", steps=8)
    assert essence(Run.open(folder)) == essence(whole)
