"""Golden runs: the tokens and rewards of short runs, and the report of an evaluation.

`python -m tests.support.golden_runs` plays them and prints them as JSON. Processors with other
vector instructions round differently, so `play_apart` starts that command in a process of its own,
whose libraries take the instructions that all of them have. What may differ all the same is left
out by `beyond_rounding`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file

import comas
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.learners.lora.learner import AdapterLearner
from comas.learners.whole import FullLearner
from comas.machine import process_facts
from comas.models.sources import shipped_models
from comas.seams import TIE
from comas.storage.run import Run
from comas.sync import run_sync
from comas.types import Row

FILE = Path(__file__).parents[1] / "golden" / "default_run.json"
COMMON = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""Environment in which torch and its matrix products take no instructions of newer processors."""
DEFAULT = {"steps": 2, "test_questions": 8, "threads": 1}
"""The embedded default, but for its length and its measurements."""
ADAPTERS: dict[str, Any] = {
    "preset": "stable",
    "steps": 2,
    "agents": 2,
    "questions": 8,
    "lr": 3e-3,
    "eval_every": 0,
    "test_questions": 0,
    "monitors": [],
    "threads": 1,
    "hosts__home__learner": "adapters",
    "hosts__home__rank": 2,
    # what depends on the machine's memory and speed, where the base is no shipped model
    "hosts__home__dtype": "float32",
    "hosts__home__tokens_per_pass": 1024,
    "hosts__home__max_rows": 64,
    "hosts__home__checkpointing": False,
}
EVALUATION = EvaluationPlan(["tiny"], (), ("single", "vote:votes=3"), 24)
CLOCKS = ("folder", "seconds")
"""Keys of a report that say where and how fast it was made."""


def play_apart() -> dict[str, Any]:
    """Play the golden runs in a process that takes the instructions of `COMMON`."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, **COMMON},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write() -> None:
    """Write the golden runs anew, a line for each turn."""
    runs = play_apart()
    text = json.dumps(runs, indent=1)
    FILE.write_text(re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", one_line, text) + "\n", encoding="utf-8")


def one_line(found: re.Match[str]) -> str:
    """A list without lists, in one line."""
    return "[" + re.sub(r"\n\s+", " ", found[1]) + "]"


def play() -> dict[str, Any]:
    """Play the golden runs in this process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = shutil.copytree(shipped_models()["tiny"], folder / "base")
        return {
            "made_by": made_by(),
            "default": trained(folder / "default", DEFAULT),
            "adapters": trained(folder / "adapters", {**ADAPTERS, "hosts__home__base": str(base)}),
            "report": evaluated(folder / "evaluation"),
        }


def made_by() -> dict[str, str]:
    """What has to be equal for equal bits."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": process_facts({})["processor"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def beyond_rounding(runs: Mapping[str, Any]) -> dict[str, Any]:
    """The part of golden runs that no rounding changes: discussions of the first step without a
    near-tie, and the report without its figures.
    """
    return {
        **{name: safe_turns(runs[name]["turns"]) for name in ("default", "adapters")},
        "report": without_figures(runs["report"]),
    }


def safe_turns(turns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The turns of those discussions of step 0 in which every draw was far from another token."""
    first = {turn: facts for turn, facts in turns.items() if turn.startswith("0/")}
    unsafe = {discussion_of(turn) for turn, (is_safe, *_) in first.items() if not is_safe}
    return {turn: facts for turn, facts in first.items() if discussion_of(turn) not in unsafe}


def discussion_of(turn: str) -> str:
    """`step/question/sample` of a turn's id."""
    return turn.rpartition("/")[0]


def without_figures(part: Any) -> Any:
    """The same values, with 0 in the place of every number."""
    if isinstance(part, list):
        return [without_figures(item) for item in part]
    if isinstance(part, dict):
        return {key: without_figures(value) for key, value in part.items()}
    return 0 if isinstance(part, int | float) else part


def trained(folder: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Train a run; return its turns as `{id: [margin is safe, reward, group, token ids]}`, and a
    digest of the weights that it ends with.
    """
    rows: list[Row] = []
    classes: tuple[Any, ...] = (AdapterLearner, FullLearner)
    steps = [learner.step for learner in classes]
    for learner in classes:
        learner.step = recording(learner.step, rows)
    try:
        comas.train(out=str(folder), **keys)
    finally:
        for learner, step in zip(classes, steps, strict=True):
            learner.step = step
    run = Run.open(folder)
    spoken = {
        turn["id"]: turn
        for step in range(len(list(run.metrics())))
        for episode in run.episodes(step)
        for turn in episode["turns"]
    }
    turns = {
        row.turn: [
            spoken[row.turn]["margin"] >= TIE,
            row.reward,
            row.group,
            " ".join(map(str, row.token_ids_T[row.mask_T].tolist())),
        ]
        for row in rows
    }
    return {"turns": dict(sorted(turns.items())), "weights": digest(folder)}


def recording(step: Callable[..., Any], rows: list[Row]) -> Callable[..., Any]:
    """A learner's step that notes the rows which it is given."""

    @functools.wraps(step)
    def recorded(self: Any, parts: Mapping[str, Sequence[Row]], *rest: Any) -> Any:
        rows.extend(row for part in parts.values() for row in part)
        return step(self, parts, *rest)

    return recorded


def digest(folder: Path) -> str:
    """SHA-256 of the weights and moments of a run's last checkpoint."""
    total = hashlib.sha256()
    last = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name[5:]))
    for file in sorted(last.rglob("*.safetensors")):
        for name, array in sorted(load_file(file).items()):
            total.update(f"{file.relative_to(last)} {name}".encode())
            total.update(array.tobytes())
    return total.hexdigest()


def evaluated(folder: Path) -> Any:
    """The report of a small evaluation, without its clocks."""
    run_sync(EvaluationRun.create(EVALUATION, str(folder)).go())
    return without_clocks(json.loads((folder / "report.json").read_text()))


def without_clocks(part: Any) -> Any:
    """The same values without those of `CLOCKS`, at any depth."""
    if isinstance(part, list):
        return [without_clocks(item) for item in part]
    if isinstance(part, dict):
        return {key: without_clocks(value) for key, value in part.items() if key not in CLOCKS}
    return part


if __name__ == "__main__":
    print(json.dumps(play()))
