"""Runs with vLLM: the contract of engines, four agents of mixed ranks, a kill and a resume, a base
that it cannot serve, and `engine=auto` where it takes vLLM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.engines import auto, vllm
from comas.engines.vllm.library import Library
from comas.engines.vllm.proof import Adapters
from comas.learners.lora.learner import AdapterLearner
from comas.storage.run import Run
from comas.testing import check_engine
from tests.support.runs import essence

COMAS = [sys.executable, "-m", "comas"]
TEAM = """
method = "comas"
steps = 10
questions = 8
test_questions = 0
eval_every = 0
checkpoint_every = 1
threads = 1
lr = 1e-3
[hosts.home]
base = "tiny"
learner = "adapters"
engine = "vllm"
[agents.a]
rank = 4
[agents.b]
rank = 8
[agents.c]
rank = 16
targets = ["q_proj", "up_proj"]
[agents.d]
rank = 12
"""


def test_vllm_keeps_the_contract_of_engines() -> None:
    asyncio.run(check_engine(vllm.build, "adapters"))


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("team") / "team.toml"
    file.write_text(TEAM)
    return file


@pytest.fixture(scope="module")
def uncut(team: Path) -> Run:
    folder = team.parent / "uncut"
    subprocess.run([*COMAS, "train", str(team), f"out={folder}"], check=True, capture_output=True)
    return Run.open(folder)


def test_four_agents_of_mixed_ranks_learn_ten_steps_from_what_was_sampled(uncut: Run) -> None:
    metrics = list(uncut.metrics())
    assert len(metrics) == 10
    for step in metrics:
        stats = step["policies"]
        assert set(stats) == {"home/a", "home/b", "home/c", "home/d"}
        assert all(policy["updates"] == 1 for policy in stats.values())
        assert all(policy["gap_max"] < 1e-4 for policy in stats.values())
        assert step["counts"]["near_ties"] is None, "nobody measured how near a draw came"
    versions = {turn["version"] for e in uncut.episodes(9) for turn in e["turns"]}
    assert versions == {9}


def test_the_run_says_what_the_engine_does_not_promise(uncut: Run) -> None:
    (process,) = json.loads((uncut.path / "processes.json").read_text())["processes"]
    assert process["engines"].startswith("home: vllm 0.")
    assert process["deterministic"] == "home: true"
    assert process["margin_known"] == "home: false"


def test_a_run_that_is_killed_and_goes_on_is_the_run_that_was_not(uncut: Run, team: Path) -> None:
    folder = team.parent / "cut"
    process = subprocess.Popen(
        [*COMAS, "train", str(team), f"out={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    _, words = process.communicate()
    assert process.returncode == -signal.SIGKILL, words
    subprocess.run([*COMAS, "resume", str(folder)], check=True, capture_output=True)
    assert essence(Run.open(folder)) == essence(uncut)


def test_a_base_that_vllm_has_no_kernels_for_is_one_line(team: Path, tiny: Path) -> None:
    folder = team.parent / "narrow"
    done = subprocess.run(
        [*COMAS, "train", str(team), f"out={folder}", f"base={tiny}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: hosts.home.engine = 'vllm': vLLM 0.")
    assert "head_dim=8" in line
    assert "or set hosts.home.engine=hf" in line
    assert not folder.exists()


def test_auto_takes_it_in_this_process_and_both_take_turns(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but that a CPU's build has no sleep: that it is asked to is what is seen."""
    done: list[str] = []

    def noted(owner: Any, name: str, word: str, replaced: bool = False) -> None:
        before = getattr(owner, name)

        def note(self: Any, *arguments: Any) -> Any:
            done.append(word)
            return None if replaced else before(self, *arguments)

        monkeypatch.setattr(owner, name, note)

    begin = vllm.VLLMEngine.__init__

    def sleeping(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.sleeps = True

    monkeypatch.setattr(auto, "takes_vllm", lambda *_: True)
    monkeypatch.setattr(vllm.VLLMEngine, "__init__", sleeping)
    noted(Library, "sleep", "sleep", replaced=True)
    noted(Library, "wake", "wake", replaced=True)
    noted(AdapterLearner, "step", "learn")
    noted(Adapters, "publish", "publish")
    noted(Adapters, "_prove", "prove")
    comas.train(team, out=str(team.parent / "auto"), hosts__home__engine="auto", steps=2)
    refreshed = ["publish", "prove"] * 4
    assert done == refreshed + ["sleep", "learn", "wake", *refreshed] * 2
    run = Run.open(team.parent / "auto")
    (process,) = json.loads((run.path / "processes.json").read_text())["processes"]
    assert process["engines"].startswith("home: vllm 0.")
    for step in run.metrics():
        assert all(policy["updates"] == 1 for policy in step["policies"].values())
        assert all(policy["gap_max"] < 1e-4 for policy in step["policies"].values())
