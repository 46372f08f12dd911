"""What a run's folder says of a checkpoint, gathered for a model card.

Leaves out: how it is told (`export.model_card`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.policies import PolicyPlan, policies_of
from comas.config.schema import Config, checked, read
from comas.evaluation.accuracy import Answer, accuracy, paired_gain
from comas.models.sources import Source, source_of
from comas.program import command
from comas.stats import Interval, wilson
from comas.storage import files
from comas.storage.run import Run
from comas.types import UserMistake


@dataclass
class Story:
    """The facts; None and emptiness are what the folder does not know."""

    name: str
    step: int
    config: Config
    tokens: int = 0
    """Generated up to this step, measurements not counted."""
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict[str, float])
    cost: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Agent -> turns, prompt_tokens, tokens, seconds of all steps."""
    updates: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Policy -> updates, skipped."""
    peak_bytes: int | None = None
    validation: Interval | None = None
    """At this step."""
    answers: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict[str, list[dict[str, Any]]]
    )
    """`before`, and `after` where it is of this step."""
    overlap: dict[str, Any] | None = None
    api: dict[str, Any] = field(default_factory=dict[str, Any])
    process: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the last process on the run ran on."""
    lineage: list[str] = field(default_factory=list[str])
    cells: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Of evaluations of this checkpoint."""
    comparisons: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def agents(self, policy: str) -> list[str]:
        """Who speaks with these weights."""
        return [name for plan in self.plans() if plan.name == policy for name in plan.agents]

    def plans(self) -> Sequence[PolicyPlan]:
        """Its policies."""
        return policies_of(self.config)

    def accuracy(self, when: str, agents: Sequence[str] = ()) -> Interval | None:
        """Of single answers, `before` or `after`: of these agents, otherwise the mean over all."""
        told = [
            Answer(**a) for a in self.answers.get(when, []) if not agents or a["agent"] in agents
        ]
        if len({a.agent for a in told}) > 1:
            return accuracy(told)
        judged = [a for a in told if a.verdict != "failed"]
        return wilson(sum(a.verdict == "right" for a in judged), len(judged)) if judged else None

    def gain(self, agents: Sequence[str] = ()) -> Interval | None:
        """After minus before, paired by question."""
        one, other = (
            [a for a in self.answers.get(w, []) if not agents or a["agent"] in agents]
            for w in ("before", "after")
        )
        return paired_gain(one, other) if one and other else None


def story(run: Run, step: int, evaluations: Sequence[str] = ()) -> Story:
    """Of this run after `step` steps; `evaluations` are folders of `comas eval` in which it was
    asked.
    """
    config = read(run.path / "config.toml")
    told = Story(
        run.path.resolve().name, step, config, overlap=run.read_eval("overlap"), api=run.spent()
    )
    for metrics in run.metrics():
        if metrics["step"] < step:
            _count(told, metrics)
    for name in ("before", "after"):
        record = run.read_eval(name)
        if record and (name == "before" or record["step"] == step):
            told.answers[name] = record["answers"]
    known = files.read_object(run.path / "processes.json")
    told.process = known["processes"][-1] if known and known.get("processes") else {}
    told.lineage = list(lineage(config))
    for folder in evaluations:
        _evaluated(told, Path(folder), f"{run.path.resolve()}@{step}")
    return told


def _count(told: Story, metrics: Mapping[str, Any]) -> None:
    told.tokens = metrics["tokens"]
    told.seconds = told.seconds + metrics["seconds"]
    told.peak_bytes = max(told.peak_bytes or 0, metrics.get("peak_bytes") or 0) or None
    for kind, seconds in metrics.get("spent", {}).items():
        told.spent[kind] = told.spent.get(kind, 0.0) + seconds
    for row in metrics.get("cost", []):
        sums = told.cost.setdefault(row["agent"], {})
        for kind in ("turns", "prompt_tokens", "tokens", "seconds"):
            sums[kind] = sums.get(kind, 0) + row[kind]
    for name, stats in metrics["policies"].items():
        sums = told.updates.setdefault(name.partition("/")[2], {"updates": 0, "skipped": 0})
        for kind in sums:
            sums[kind] += stats.get(kind, 0)
    found = metrics.get("validation") if metrics["step"] == told.step - 1 else None
    told.validation = Interval(**found) if found else None


def lineage(config: Config, depth: int = 100) -> Iterator[str]:
    """What the policies started from, in words; through runs of runs, as far as these are still
    there.
    """
    sources = {plan.source.name: plan.source for plan in policies_of(config) if plan.here}
    for source in map(sources.__getitem__, sorted(sources)):
        if source.kind != "run":
            yield _described(source)
            continue
        run = source.run()
        below = checked(run.config())
        preset = f"/{below.preset}" if below.preset else ""
        after = f", after {source.step} steps" if source.step is not None else ""
        facts = f"{below.method}{preset} on {below.task}, seed {below.seed}{after}"
        yield f"run {run.path.name} ({facts})".replace(".py", "")
        if depth:
            yield from (
                f"before that: {line.removeprefix('before that: ')}"
                for line in lineage(below, depth - 1)
            )


def _described(source: Source) -> str:
    if source.below is None:
        return shown(source.name)
    return f"{shown(source.below)}, with the adapter {Path(source.name).name}"


def shown(base: str) -> str:
    """A base without the folders of the machine that it was used on."""
    kind = source_of(base).kind
    if kind == "seed":
        return f"`{base}`, a small model that is shipped with comas"
    if kind == "hub":
        return f"`{base}`"
    return f"`{Path(base).name}`, a {'file' if kind == 'gguf' else 'folder'}"


def _evaluated(told: Story, folder: Path, place: str) -> None:
    """Add what an evaluation found of the checkpoint at `place`."""
    plan = files.read_object(folder / "evaluation.json")
    report = files.read_object(folder / "report.json")
    if plan is None:
        raise UserMistake(f"--evaluation {folder} is not an evaluation: it has no evaluation.json")
    if report is None:
        raise UserMistake(
            f"--evaluation {folder} has not ended yet: go on with `{command()} resume"
            f" {shlex.quote(str(folder))}`"
        )
    here = [name for name, found in plan.get("places", {}).items() if found == place]
    cells = [c for c in report["cells"] if c["system"] in here]
    if not cells:
        raise UserMistake(
            f"--evaluation {folder} asked nothing of {told.name} after {told.step} steps: leave it"
            " out, or export one of"
            f" {', '.join(sorted(Path(p).name for p in plan.get('places', {}).values()))}"
        )
    told.cells += cells
    told.comparisons += [
        d
        for d in report["systems"]
        if any(d[side]["system"] in here for side in ("first", "second"))
    ]
