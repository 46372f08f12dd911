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
from comas.models.packaged import is_packaged
from comas.models.sources import Source, source_of
from comas.program import command
from comas.stats import Interval, wilson
from comas.storage import files
from comas.storage.run import Run
from comas.types import UserMistake


@dataclass
class Facts:
    """The facts; None and emptiness are what the folder does not know."""

    name: str
    step: int
    config: Config
    tokens: int = 0
    """Generated up to this step, measurements not counted."""
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    cost: dict[str, dict[str, float]] = field(default_factory=dict)
    """Agent -> turns, prompt_tokens, tokens, seconds of all steps."""
    updates: dict[str, dict[str, float]] = field(default_factory=dict)
    """Policy -> updates, skipped."""
    peak_bytes: int | None = None
    validation: Interval | None = None
    """At this step."""
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """`before`, and `after` where it is of this step."""
    overlap: dict[str, Any] | None = None
    api: dict[str, Any] = field(default_factory=dict)
    process: dict[str, Any] = field(default_factory=dict)
    """What the last process on the run ran on."""
    lineage: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    """Of evaluations of this checkpoint."""
    comparisons: list[dict[str, Any]] = field(default_factory=list)

    def agents(self, policy: str) -> list[str]:
        """Who speaks with these weights."""
        return [name for plan in self.plans() if plan.name == policy for name in plan.agents]

    def plans(self) -> Sequence[PolicyPlan]:
        """Its policies."""
        return policies_of(self.config)

    def accuracy(self, when: str, agents: Sequence[str] = ()) -> Interval | None:
        """Of single answers, `before` or `after`: of these agents, otherwise the mean over all."""
        answers = [Answer(**record) for record in self._answers_of(when, agents)]
        if len({answer.agent for answer in answers}) > 1:
            return accuracy(answers)
        verdicts = [answer.verdict for answer in answers if answer.verdict != "failed"]
        return wilson(verdicts.count("right"), len(verdicts)) if verdicts else None

    def gain(self, agents: Sequence[str] = ()) -> Interval | None:
        """After minus before, paired by question."""
        before = self._answers_of("before", agents)
        after = self._answers_of("after", agents)
        return paired_gain(before, after) if before and after else None

    def _answers_of(self, when: str, agents: Sequence[str]) -> list[dict[str, Any]]:
        """The answers of these agents, of all where none is named."""
        answers = self.answers.get(when, [])
        return [answer for answer in answers if not agents or answer["agent"] in agents]


def facts_of(run: Run, step: int, evaluations: Sequence[str] = ()) -> Facts:
    """Of this run after `step` steps; `evaluations` are folders of `comas eval` in which it was
    asked.
    """
    config = read(run.path / "config.toml")
    facts = Facts(run.path.resolve().name, step, config)
    facts.overlap = run.read_eval("overlap")
    facts.api = run.spent()
    for metrics in run.metrics():
        if metrics["step"] < step:
            _count(facts, metrics)
    for name in ("before", "after"):
        record = run.read_eval(name)
        if record and (name == "before" or record["step"] == step):
            facts.answers[name] = record["answers"]
    record = files.read_object(run.path / "processes.json") or {}
    if record.get("processes"):
        facts.process = record["processes"][-1]
    facts.lineage = list(lineage(config))
    for folder in evaluations:
        _add_evaluation(facts, Path(folder), f"{run.path.resolve()}@{step}")
    return facts


def _count(facts: Facts, metrics: Mapping[str, Any]) -> None:
    """Add what a step has cost."""
    facts.tokens = metrics["tokens"]
    facts.seconds += metrics["seconds"]
    facts.peak_bytes = max(facts.peak_bytes or 0, metrics.get("peak_bytes") or 0) or None
    _add(facts.spent, metrics.get("spent", {}))
    for row in metrics.get("cost", []):
        sums = facts.cost.setdefault(row["agent"], {})
        _add(sums, {kind: row[kind] for kind in ("turns", "prompt_tokens", "tokens", "seconds")})
    for name, stats in metrics["policies"].items():
        policy = name.partition("/")[2]
        sums = facts.updates.setdefault(policy, {"updates": 0, "skipped": 0})
        _add(sums, {kind: stats.get(kind, 0) for kind in sums})
    is_last = metrics["step"] == facts.step - 1
    validation = metrics.get("validation") if is_last else None
    facts.validation = Interval(**validation) if validation else None


def _add(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for kind, value in values.items():
        sums[kind] = sums.get(kind, 0) + value


def lineage(config: Config, depth: int = 100) -> Iterator[str]:
    """What the policies started from, in words; through runs of runs, as far as these are still
    there.
    """
    sources = {plan.source.name: plan.source for plan in policies_of(config) if plan.here}
    for name in sorted(sources):
        source = sources[name]
        if source.kind != "run":
            yield _described(source)
            continue
        run = source.run()
        below = checked(run.config())
        yield f"run {run.path.name} ({_training(below, source.step)})".replace(".py", "")
        if depth:
            for line in lineage(below, depth - 1):
                yield f"before that: {line.removeprefix('before that: ')}"


def _training(config: Config, step: int | None) -> str:
    """Say how a run was trained."""
    preset = f"/{config.preset}" if config.preset else ""
    after = f", after {step} steps" if step is not None else ""
    return f"{config.method}{preset} on {config.task}, seed {config.seed}{after}"


def _described(source: Source) -> str:
    if source.below is None:
        return shown(source.name)
    return f"{shown(source.below)}, with the adapter {Path(source.name).name}"


def shown(base: str) -> str:
    """A base without the folders of the machine that it was used on."""
    kind = source_of(base).kind
    if kind == "seed":
        return f"`{base}`, a small model that is shipped with comas"
    if kind == "hub" or is_packaged(base):
        return f"`{base}`"
    return f"`{Path(base).name}`, a {'file' if kind == 'gguf' else 'folder'}"


def _add_evaluation(facts: Facts, folder: Path, place: str) -> None:
    """Add what an evaluation found of the checkpoint at `place`."""
    plan = files.read_object(folder / "evaluation.json")
    report = files.read_object(folder / "report.json")
    if plan is None:
        raise UserMistake(f"--evaluation {folder} is not an evaluation: it has no evaluation.json")
    if report is None:
        going_on = f"`{command()} resume {shlex.quote(str(folder))}`"
        raise UserMistake(f"--evaluation {folder} has not ended yet: go on with {going_on}")
    places = plan.get("places", {})
    systems = [name for name, found in places.items() if found == place]
    cells = [cell for cell in report["cells"] if cell["system"] in systems]
    if not cells:
        others = ", ".join(sorted(Path(other).name for other in places.values()))
        raise UserMistake(
            f"--evaluation {folder} asked nothing of {facts.name} after {facts.step} steps: leave"
            f" it out, or export one of {others}"
        )
    facts.cells += cells
    for comparison in report["systems"]:
        if any(comparison[side]["system"] in systems for side in ("first", "second")):
            facts.comparisons.append(comparison)
