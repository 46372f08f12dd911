"""Verbs of the command line, for scripts and notebooks: `train`, `resume`, `evaluate`, `compare`.

`load` is in `evaluation.systems`. Leaves out: what the words mean
(docs/evaluation.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from comas.config.plugins import load_plugin
from comas.config.schema import OF_TRAINING, read, settings_from
from comas.display import shown
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import INSTEAD, LIMIT, EvaluationPlan, limit_of
from comas.hooks import Hook, hooks_of
from comas.stats import spelt
from comas.sync import run_sync
from comas.training.result import Result
from comas.training.start import resume_async, train_async
from comas.types import UserMistake

System = str | Path | Sequence[str | Path]
"""A run, a model or a team, or several runs that count as one system."""
NOTHING_JUDGED = "fewer than two questions were judged for both; nothing can be said"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Figures of an evaluation; it stays on disk, and `comas resume` and `comas
    report` know it.
    """

    folder: Path
    cells: Sequence[Mapping[str, Any]]
    """One for each system, task and setup: `system task setup n right wrong failed accuracy low
    high tokens seconds` ...; `tokens` and `seconds` are those of all its questions.
    """
    systems: Sequence[Mapping[str, Any]]
    """Every other system against the first: `task setup n difference low high p verdict` ..."""
    setups: Sequence[Mapping[str, Any]]
    """Every other setup against the first, likewise."""
    notes: Sequence[str]
    """Notes that a reader has to know besides the numbers."""
    record: Mapping[str, Any]
    """All of `report.json`."""

    def __repr__(self) -> str:
        lines = [f"Evaluation({str(self.folder)!r})"]
        for cell in self.cells:
            accuracy = "nothing judged"
            if cell["accuracy"] is not None:
                accuracy = spelt(cell["accuracy"], cell["low"], cell["high"])
            lines.append(
                f"  {cell['label']} {cell['task']} {cell['setup']}: {accuracy} over {cell['n']}"
            )
        for comparison in (*self.systems, *self.setups):
            second, first = (
                f"{comparison[side]['label']} {comparison[side]['setup']}"
                for side in ("second", "first")
            )
            difference = spelt(comparison["difference"], comparison["low"], comparison["high"])
            lines.append(f"  {second} minus {first}: {difference}, {comparison['verdict']}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison:
    """Whether the second of two systems is better than the first, on the same questions."""

    task: str
    setup: str
    n: int
    """Questions that both were judged on."""
    difference: float
    """Accuracy of the second minus that of the first, with its 95 % interval."""
    low: float | None
    high: float | None
    p: float
    """Two-sided, corrected for the number of comparisons that were made."""
    verdict: str
    """`better` or `worse` where p is below .05, otherwise `none shown`."""


def train(
    config: str | Path | None = None,
    hooks: Sequence[Hook] | None = None,
    **overrides: Any,
) -> Result:
    """Train a team: `comas.train(method="ttrl", steps=50, options__votes=8)`; `__` stands for the
    dot of a nested key.

    Progress is shown where a person looks on, on a terminal and in notebooks, unless `hooks` are
    given: they are called instead, and with `hooks=[]` notes alone are told, as warnings of the
    logger `comas`. Raises UserMistake for what is wrong with a config, and KeyboardInterrupt after
    Ctrl-C or SIGTERM, once the step is committed: `resume` goes on.
    """
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    if config is not None:
        config = _at_home(config)
    with shown(hooks) as listeners:
        return run_sync(train_async(read(config, keys), *listeners))


def resume(
    run: str | Path,
    steps: int | None = None,
    tokens: int | None = None,
    hooks: Sequence[Hook] | None = None,
    **changes: Any,
) -> Result:
    """Go on with a run from its last commit, to its own number of steps, or to `steps` or `tokens`
    in all.

    `changes` are keys that may change on the way (`hosts__home__max_rows=64`; `__` stands for the
    dot of a nested key): bounds of memory, budgets and the like (docs/config.md); None is no
    budget. Raises UserMistake where `run` is no run or a key may not change.
    """
    length = {
        key: value for key, value in (("steps", steps), ("tokens", tokens)) if value is not None
    }
    settings = settings_from({**length, **changes})
    with shown(hooks) as listeners:
        return run_sync(resume_async(run, *listeners, changes=settings))


def evaluate(
    *systems: System,
    tasks: str | Sequence[str] = (),
    setups: str | Sequence[str] = "single",
    limit: int | None = LIMIT,
    seed: int = 0,
    data: str | Path | None = None,
    out: str | Path | None = None,
    hooks: Sequence[Hook] = (),
    **keys: Any,
) -> Evaluation:
    """Evaluate runs and models on held-out questions, each against the first, with corrected
    tests.

    A system is a run (`runs/a`, `runs/a@best`), a model's folder or hub name, a `team.toml`, or a
    list of runs that count as one system. `limit` is the number of questions per task (None: all),
    `keys` are keys of the config for all systems (`eval_temperature=0`). Raises UserMistake where a
    name means nothing; such a mistake leaves no folder behind.
    """
    names = [
        _at_home(s) if isinstance(s, str | Path) else ",".join(map(_at_home, s)) for s in systems
    ]
    if type(seed) is not int or seed < 0:
        raise UserMistake(f"evaluate: seed={seed!r}: a whole number from 0 on")
    most = None if limit == LIMIT else limit or 0
    data_path = str(data) if data is not None else None
    plan = planned(names, tasks, setups, most, seed, settings_from(keys), data_path)
    evaluation = EvaluationRun.create(plan, str(out) if out is not None else None)
    report = run_sync(evaluation.go(hooks_of(hooks)))
    tables = {name: report[name] for name in ("cells", "systems", "setups", "notes")}
    return Evaluation(Path(report["folder"]), **tables, record=report)


def planned(
    names: Sequence[str],
    tasks: str | Sequence[str],
    setups: str | Sequence[str],
    limit: int | None,
    seed: int,
    settings: Mapping[str, Any],
    data: str | None,
) -> EvaluationPlan:
    """The plan of an evaluation, with what is wrong with it reported before anything is loaded;
    without a `limit` what `test_questions` of the settings says, and 0 is all.
    """
    if not names:
        raise UserMistake("eval needs at least one run or base model, such as tiny")
    setup_names, task_names = _listed(setups), _listed(tasks)
    if not setup_names:
        raise UserMistake(
            "setups names none: one or more of single, vote, debate, autogen, game, a method"
        )
    for task in task_names:
        load_plugin("task", task)
    for name, value in settings.items():
        key = name.split(".")[0]
        if key in INSTEAD:
            raise UserMistake(
                f"{name}={value}: {key} is a key of training: here it is {INSTEAD[key]}"
            )
        if key in OF_TRAINING:
            raise UserMistake(
                f"{name}={value}: {key} is a key of training, and changes nothing in an evaluation:"
                " leave it out"
            )
    per_task = limit_of(limit, settings)
    return EvaluationPlan(names, task_names, setup_names, per_task, seed, settings, data)


def compare(first: System, second: System, **settings: Any) -> list[Comparison]:
    """Whether the second system is better than the first: one comparison for each task and setup;
    `settings` as in `evaluate`.
    """
    evaluation = evaluate(first, second, **settings)
    if not evaluation.systems:
        raise UserMistake(f"{first} and {second}: {NOTHING_JUDGED}")
    names = [field.name for field in fields(Comparison)]
    return [Comparison(**{name: record[name] for name in names}) for record in evaluation.systems]


def _at_home(name: str | Path) -> str:
    """The name of a system or a file with `~` expanded, as a shell does it."""
    return os.path.expanduser(str(name))


def _listed(names: str | Sequence[str]) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else names
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))
