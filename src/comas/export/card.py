"""Model cards: what the hub reads (YAML), and what people do. Every number is one of the run's
folder; what was not measured is said to be so.

Leaves out: writing weights and `team.toml` (`export.team`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader

from comas.config.policies import PolicyPlan, policies_of
from comas.config.schema import Config, checked, read
from comas.evaluation.accuracy import Answer, accuracy, paired_gain
from comas.models.packaged import is_packaged
from comas.models.sources import source_of
from comas.program import command
from comas.stats import Interval, spelt
from comas.storage import files
from comas.storage.records import without_none
from comas.storage.run import Run
from comas.types import UserMistake

UNKNOWN = "not measured"
SETTINGS = (
    *("lr", "betas", "weight_decay", "grad_norm", "epochs", "minibatches", "temperature"),
    *("max_tokens", "room", "options", "credit", "loss", "kl", "task_options"),
)


@dataclass(frozen=True)
class Part:
    """What a card is about: `team`, or one policy's `model` or `adapter`."""

    kind: str
    policies: Sequence[str]
    bases: Mapping[str, str]
    """Policy -> hub name, shipped model or folder that it started from."""
    hub: Sequence[str]
    """Those of them that are names on the hub."""
    dtype: Mapping[str, str]
    """Policy -> precision of its whole model, where it was written."""
    adapters: Sequence[str] = ()
    """The policies that are adapters."""


# --- what the folder says


@dataclass
class Facts:
    """The facts; None and emptiness are what the folder does not know."""

    name: str
    step: int
    config: Config
    tokens: int = 0
    """Generated up to this step, measurements not counted."""
    seconds: float = 0.0
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
        return accuracy([Answer(**record) for record in self._answers_of(when, agents)])

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
        if metrics["step"] >= step:
            break
        facts.tokens = metrics["tokens"]
        facts.seconds += metrics["seconds"]
        facts.peak_bytes = max(facts.peak_bytes or 0, metrics.get("peak_bytes") or 0) or None
        validation = metrics.get("validation") if metrics["step"] == step - 1 else None
        facts.validation = Interval(**validation) if validation else None
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


def lineage(config: Config, depth: int = 100) -> Iterator[str]:
    """What the policies started from, in words; through runs of runs, as far as these are still
    there.
    """
    sources = {plan.source.name: plan.source for plan in policies_of(config) if plan.here}
    for name in sorted(sources):
        source = sources[name]
        if source.kind != "run":
            below = f", with the adapter {Path(source.name).name}" if source.below else ""
            yield shown(source.below or source.name) + below
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


# --- how it is told


def card(facts: Facts, part: Part) -> str:
    """The card as Markdown: `card.jinja` with these facts."""
    config = facts.config
    agents = [agent for policy in part.policies for agent in facts.agents(policy)]
    answers = facts.answers.get("after") or facts.answers.get("before") or []
    values = config.model_dump(mode="json", include=set(SETTINGS))
    settings = without_none({key: values[key] for key in SETTINGS if values[key] != {}})
    base = part.bases[part.policies[0]]

    def process(*keys: str) -> str:
        known = [f"{key} {facts.process[key]}" for key in keys if key in facts.process]
        return ", ".join(known) or UNKNOWN

    def costs(account: Mapping[str, Any]) -> str:
        kinds = account.get("spent", {}).items()
        told = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in kinds)
        told += f", money {account['money']:.4f}" if account.get("money") else ""
        return told or UNKNOWN

    environment = Environment(
        loader=PackageLoader("comas.export", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "name": lambda path: Path(path).name,
        "shown": shown,
        "known": lambda found: UNKNOWN if found is None else str(found),
        "costs": costs,
    }
    return environment.get_template("card.jinja").render(
        facts=facts,
        part=part,
        front=_front(facts, part),
        agents=agents,
        others=[name for name in config.agents if name not in agents],
        own=[(agent, [agent]) for agent in agents],
        base={
            "kind": source_of(base).kind,
            "packaged": is_packaged(base),
            "name": json.dumps(
                Path(base).name if Path(base).is_absolute() else base, ensure_ascii=False
            ),
        },
        asked=len({answer["question"] for answer in answers}),
        away=[name for name, agent in config.agents.items() if config.hosts[agent.host].api],
        started=facts.lineage
        if part.kind == "team"
        else dict.fromkeys(shown(part.bases[policy]) for policy in part.policies),
        process=process,
        settings=tomli_w.dumps(settings),
        spelt=lambda mean, *ends: UNKNOWN if mean is None else spelt(mean, *ends),
        unknown=UNKNOWN,
    )


def _front(facts: Facts, part: Part) -> str:
    """What the hub reads, as YAML."""
    from huggingface_hub import ModelCardData

    of_adapter = part.kind == "adapter"
    method = facts.config.method.rpartition("/")[2].removesuffix(".py")
    tags = ["comas", "multi-agent", "reinforcement-learning", method]
    if of_adapter or (part.kind == "team" and part.adapters):
        tags.append("lora")
    data = ModelCardData(
        library_name="peft" if of_adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=(part.hub[0] if len(part.hub) == 1 else list(part.hub)) or None,
        tags=list(dict.fromkeys(tags)),
    )
    if part.hub:
        data["base_model_relation"] = "adapter" if of_adapter else "finetune"
    return data.to_yaml()
