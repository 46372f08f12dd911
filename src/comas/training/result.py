"""Result of a run, read from its folder once.

Leaves out: the numbers of its steps (`metrics.jsonl`), what is printed of it (`cli.train`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.schema import learning_policies
from comas.evaluation.accuracy import by_agent, paired_gain
from comas.program import Work
from comas.stats import Interval
from comas.storage.alarms import read_alarms
from comas.storage.records import moved_in
from comas.storage.run import Run

LAST = 10
"""Steps over which figures are averaged."""
FIGURES = {
    "pay": ("accuracy", "precision", "recall", "auc"),
    "judges": ("auc", "balanced", "accepts_right", "accepts_wrong"),
    "variety": ("distinct", "entropy"),
    "posed": ("valid", "distinct", "solvable", "frontier"),
}
"""Metric -> its figures that say most."""
Figures = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metric -> role (or `step`, where it is of the whole step) -> figure -> value."""


@dataclass(repr=False)
class Result:
    """Result of a run."""

    run: Path
    steps: int
    tokens: int
    """Generated while training; measurements not counted."""
    seconds: float
    """Time that this process took."""
    accuracy: dict[str, Interval | None] = field(default_factory=dict)
    """`before` and `after` on held-out questions."""
    gain: Interval | None = None
    """After minus before, paired by question."""
    alarms: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Alarms of monitors, as in `alarms.jsonl`."""
    ended_by_alarm: bool = False
    """Whether one of them has ended the run (`on_alarm`)."""
    agents: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """`before` and `after` -> agent -> accuracy; nothing where that was not measured."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """Kind of work (sampling, learning ...) -> seconds of all steps so far."""
    step_seconds: float = 0.0
    """Time of all steps so far."""
    figures: Figures = field(default_factory=dict[str, Any])
    """Means of the last ten steps, against labels where there are any."""
    moved: dict[str, int] = field(default_factory=dict[str, int])
    """Policy -> the steps that changed its weights, of all `steps`."""
    notes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """`first` and `last` -> what was noted in that step."""
    api: dict[str, Any] = field(default_factory=dict[str, Any])
    """Host -> what its API has cost."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """That of the run."""

    def __repr__(self) -> str:
        measured = ", ".join(
            f"{name} {interval}" for name, interval in self.accuracy.items() if interval
        )
        return (
            f"Result({str(self.run)!r}: {self.steps} steps, {self.tokens:,} tokens;"
            f" {measured or 'accuracy not measured'})"
        )


def result_of(run: Run, seconds: float = 0.0) -> Result:
    """Read what the folder says."""
    config = run.config()
    steps = list(run.metrics())
    done = steps[-1]["step"] + 1 if steps else 0
    records = {name: run.read_eval(name) for name in ("before", "after")}
    # it has gone on since
    if (after := records["after"]) and after["step"] != done:
        records["after"] = None
    before, after = records["before"], records["after"]
    spent: dict[str, float] = {}
    for metrics in steps:
        for kind, took in metrics["spent"].items():
            spent[kind] = spent.get(kind, 0.0) + took
    alarms = read_alarms(run.path)
    ended = is_ended(alarms, done, config.get("on_alarm", "warn")) and done < config["steps"]
    return Result(
        run=run.path,
        steps=done,
        tokens=steps[-1]["tokens"] if steps else 0,
        seconds=seconds,
        accuracy={
            name: Interval(**record["accuracy"]) if record and record["accuracy"] else None
            for name, record in records.items()
        },
        gain=paired_gain(before["answers"], after["answers"]) if before and after else None,
        alarms=alarms,
        ended_by_alarm=ended,
        agents={name: by_agent(record["answers"]) for name, record in records.items() if record},
        spent=spent,
        step_seconds=math.fsum(metrics["seconds"] for metrics in steps),
        figures=mean_figures(steps[-LAST:]),
        moved=moved_in(steps, learning_policies(config.get("agents", {}))),
        notes={
            name: [note for metrics in end for note in metrics.get("notes", [])]
            for name, end in (("first", steps[:1]), ("last", steps[-1:]))
        },
        api=run.spent(),
        config=config,
    )


def mean_figures(steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Average each figure over those steps that have it."""
    means: dict[str, dict[str, dict[str, float]]] = {}
    for metric in FIGURES:
        values: dict[str, dict[str, list[float]]] = {}
        for step in steps:
            table = step.get(metric, {})
            for role, figures in (table if metric == "judges" else {"step": table}).items():
                for name, value in figures.items():
                    if value is not None:
                        values.setdefault(role, {}).setdefault(name, []).append(value)
        for role, of_role in values.items():
            role_means = {name: sum(each) / len(each) for name, each in of_role.items()}
            means.setdefault(metric, {})[role] = role_means
    return means


def nothing_left(run: Run, start: int) -> str | None:
    """How to go on with a run that has come to its end, all measured; None where work is left, and
    with trackers, which may lack steps.
    """
    config = run.config()
    if config.get("track"):
        return None
    tokens = config.get("tokens")
    spent = 0
    for metrics in run.metrics():
        spent = metrics["tokens"]
    measured = run.read_eval("after")
    if config["test_questions"] and (measured is None or measured["step"] != start):
        return None
    if start >= config["steps"]:
        why = f"all steps are done ({start})"
        if config.get("schedule", "constant") != "constant":  # whose rates fell over these steps
            return f"nothing is left to do: {why}"
        return _ended(run, why, f"steps={2 * max(1, start)}")
    if tokens is not None and spent >= tokens:
        return _ended(run, f"{spent:,} of {tokens:,} tokens are spent", f"tokens={2 * tokens}")
    if is_ended(read_alarms(run.path), start, config.get("on_alarm", "warn")):
        return _ended(run, f"an alarm ended it after step {start}", "on_alarm=warn")
    return None


def _ended(run: Run, why: str, change: str) -> str:
    return f"nothing is left to do: {why};{Work(run.path).going_on(change).removeprefix(' and')}"


def is_ended(alarms: Sequence[Mapping[str, Any]], done: int, action: str) -> bool:
    """Whether one of the alarms ends a run of `done` steps whose `on_alarm` is this action now.

    It is of the last step, and did not come while the run was set to go on.
    """
    last = [alarm for alarm in alarms if alarm["step"] == done - 1]
    # one that was written before actions were says nothing of its own
    return action != "warn" and any(alarm.get("action", action) != "warn" for alarm in last)
