"""What a run has beyond weights, through deaths and resumes: the record of a method, the place in a
schedule, and the weights of an earlier self.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import comas
from comas.config.schema import settings_of
from comas.game.agent import derive_seed
from comas.hooks import Hook
from comas.hosts.local import make_local_host
from comas.storage.run import Run
from comas.sync import run_sync
from comas.team.build import run_sync as in_a_loop
from comas.training.start import resume_async
from comas.types import Ask, Sampling, UserMistake
from tests.support.remembering import METHOD
from tests.support.runs import Killed, essence

STEPS = 5
TEAM = {"a0": {}, "past": {"policy": "a0", "lag": 2}}
KEYS: dict[str, Any] = {
    "steps": STEPS,
    "lr": 1e-2,
    "questions": 3,
    "test_questions": 0,
    "eval_every": 0,
    "checkpoint_every": 1,
    "threads": 1,
    "agents": TEAM,
    "room": {"solution": 12},
    "schedule": "cosine",
    "warmup": 2,
}


def train(folder: Path, base: Path, hooks: list[Hook] | None = None, **changes: Any) -> Run:
    method = folder.parent / "remembering.py"
    method.write_text(METHOD)
    comas.train(
        method=str(method),
        hosts__home__base=str(base),
        out=str(folder),
        hooks=hooks or [],
        **{**KEYS, **changes},
    )
    return Run(folder)


def last_state(run: Run) -> Any:
    step = (run.marker() or {})["step"]
    return json.loads((run.path / "checkpoints" / f"step-{step}" / "state.json").read_text())


def all_of(run: Run) -> Any:
    return *essence(run), last_state(run)


class Killing(Hook):
    """Ends the process after a step was written, and before it is committed."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, metrics: Any, episodes: Any) -> None:
        if metrics["step"] == self.at:
            raise Killed


class Copying(Hook):
    """Keeps every checkpoint, which a run does not."""

    def __init__(self, run: Path, kept: Path) -> None:
        self.run = run
        self.kept = kept

    def step(self, metrics: Any, episodes: Any) -> None:
        name = f"step-{metrics['step']}"
        shutil.copytree(self.run / "checkpoints" / name, self.kept / name)


@pytest.fixture(scope="module", params=["full", "adapters"])
def whole(
    request: pytest.FixtureRequest, untaught: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Path, str]:
    """A run that was never stopped, all its checkpoints, and its learner."""
    folder = tmp_path_factory.mktemp(request.param)
    copying = Copying(folder / "whole", folder / "kept")
    run = train(folder / "whole", untaught, [copying], hosts__home__learner=request.param)
    return run, folder / "kept", request.param


@pytest.mark.parametrize("at", [0, 2, 3])
def test_resumed_at_any_step_is_the_run_that_was_never_stopped(
    at: int, whole: tuple[Run, Path, str], untaught: Path, tmp_path: Path
) -> None:
    run, _, learner = whole
    with pytest.raises(Killed):
        train(tmp_path / "cut", untaught, [Killing(at)], hosts__home__learner=learner)
    in_a_loop(resume_async(tmp_path / "cut", Hook()))
    assert all_of(Run(tmp_path / "cut")) == all_of(run)


def test_the_record_and_the_rates_of_the_run_are_what_they_should_be(
    whole: tuple[Run, Path, str],
) -> None:
    run, _, _ = whole
    assert last_state(run)["steps"] == STEPS
    rates = [step["policies"]["home/a0"]["lr"] / KEYS["lr"] for step in run.metrics()]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.25])
    assert not any("home/past" in step["policies"] for step in run.metrics())


def weights(checkpoint: Path, policy: str) -> dict[str, np.ndarray]:
    files = sorted((checkpoint / policy).glob("*model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(("step", "multiple"), [(1, 0), (2, 2), (3, 2), (4, 4)])
def test_an_earlier_self_has_the_weights_of_the_last_multiple(
    step: int, multiple: int, whole: tuple[Run, Path, str]
) -> None:
    _, kept, _ = whole
    past = weights(kept / f"step-{step}", "past")
    assert same(past, weights(kept / f"step-{multiple}", "a0"))
    others = [weights(kept / f"step-{other}", "a0") for other in range(STEPS) if other != multiple]
    assert not any(same(past, other) for other in others)


def test_an_earlier_self_speaks_with_these_weights(
    whole: tuple[Run, Path, str], untaught: Path
) -> None:
    run, kept, learner = whole
    turns = [turn for episode in run.episodes(3) for turn in episode["turns"]]
    spoken = [turn for turn in turns if turn["agent"] == "past"]
    assert len(spoken) == 2 * 3

    def texts(checkpoint: str) -> list[str]:
        under = str(untaught) if learner == "adapters" else None
        host = make_local_host("home", {"p": str(kept / checkpoint / "a0")}, under=under)
        said = []
        for turn in spoken:
            messages = [{"role": "user", "content": turn["prompt"]}]
            seed = derive_seed(0, turn["id"])
            asked = host.ask(
                Ask("t", "p", messages, "solution", False, Sampling(max_tokens=12), seed)
            )
            said.append(run_sync(asked).text)
        host.close()
        return said

    assert texts("step-2") == [turn["text"] for turn in spoken]
    assert texts("step-3") != [turn["text"] for turn in spoken]
    assert {turn["version"] for turn in spoken} == {2}


def test_a_resume_reads_the_record_of_the_checkpoint(untaught: Path, tmp_path: Path) -> None:
    """Not the first one, and none that the process had in memory."""
    run = train(tmp_path / "r", untaught, steps=2, schedule="constant", warmup=0)
    before = last_state(run)
    in_a_loop(resume_async(run.path, Hook(), changes=settings_of(["steps=3"])))
    after = last_state(run)
    assert (before["steps"], after["steps"]) == (2, 3)
    whole = train(tmp_path / "w", untaught, steps=3, schedule="constant", warmup=0)
    assert all_of(run) == all_of(whole)


def _remove(checkpoint: Path) -> None:
    (checkpoint / "state.json").unlink()


def _cut(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text("{")


@pytest.mark.parametrize("damage", [_remove, _cut])
def test_a_checkpoint_whose_record_is_lost_is_damaged_like_any_other(
    damage: Callable[[Path], None], untaught: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "r", untaught)
    whole = all_of(run)
    damage(run.path / "checkpoints" / f"step-{STEPS}")
    in_a_loop(resume_async(run.path, Hook()))
    assert all_of(run) == whole


def test_a_longer_schedule_is_another_run(untaught: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "r", untaught, steps=3)
    with pytest.raises(UserMistake, match=r"steps=9: .* 3 steps"):
        in_a_loop(resume_async(run.path, Hook(), changes=settings_of(["steps=9"])))
