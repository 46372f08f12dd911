"""Short runs, and what two runs must have in common to be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

import comas
from comas.config.plan import Plan, plan
from comas.config.schema import read
from comas.storage.run import Run
from comas.team.build import Team, build_team

SMALL = {
    "preset": "stable",  # with criticism, and scores that are said
    "lr": 1e-3,
    "questions": 6,
    "test_questions": 4,
    "eval_questions": 4,
    "eval_every": 2,
    "checkpoint_every": 2,
    "threads": 1,
    "options__format_check": False,
}


def planned(
    overrides: Sequence[str] | Mapping[str, Any] = (), *, learn: bool = True, **keys: Any
) -> Plan:
    """Plan a config of `key=value` pairs, or of keys with `__` for their dots."""
    assert not (overrides and keys), "pairs or keys, not both"
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return plan(read(None, named or overrides), learn=learn)


def team(
    overrides: Sequence[str] | Mapping[str, Any] = (), *, learn: bool = True, **keys: Any
) -> Team:
    """Build the team of such a config, with its models."""
    return build_team(planned(overrides, learn=learn, **keys))


def run_of(folder: Path, base: Path, **changes: object) -> Run:
    keys = {"steps": 4, **SMALL, **changes}
    if "method" in changes:  # which may have no presets
        keys["preset"] = changes.get("preset")
    comas.train(
        out=str(folder),
        hosts__home__base=str(base),
        **{k: v for k, v in keys.items() if v is not None},
    )  # type: ignore[arg-type]
    return Run(folder)


def essence(run: Run) -> tuple[list, list]:
    """Rewards and texts of every step, and all weights and optimizer states."""
    steps = len(list(run.metrics()))
    talk = [
        [(t["id"], t["text"], t["reward"], t["info"]) for e in run.episodes(s) for t in e["turns"]]
        for s in range(steps)
    ]
    last = run.path / "checkpoints" / f"step-{steps}"
    weights = [
        (f.relative_to(last), {k: v.tolist() for k, v in load_file(f).items()})
        for f in sorted(last.rglob("*.safetensors"))
    ]
    return talk, weights


class Killed(BaseException):
    """Ends a process from within a hook, which an exception could not."""
