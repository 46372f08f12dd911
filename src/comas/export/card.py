"""Model cards: what the hub reads (YAML), and what people do. Every number is one of the run's
folder; what was not measured is said to be so.

Leaves out: writing weights and `team.toml` (`export.team`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader

from comas.config.resolve import PolicyPlan, policies_of
from comas.config.schema import Config, read
from comas.evaluation.accuracy import Answer, accuracy, paired_gain
from comas.models.sources import is_packaged, source_of
from comas.stats import Interval
from comas.storage import files
from comas.storage.records import without_none
from comas.storage.run import Run

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
    process: dict[str, Any] = field(default_factory=dict)
    """What the last process on the run ran on."""

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


def facts_of(run: Run, step: int) -> Facts:
    """Of this run after `step` steps."""
    facts = Facts(run.path.resolve().name, step, read(run.path / "config.toml"))
    facts.overlap = run.read_eval("overlap")
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
    return facts


def shown(base: str) -> str:
    """A base without the folders of the machine that it was used on."""
    kind = source_of(base).kind
    if kind == "seed":
        return f"`{base}`, a small model that is shipped with comas"
    if kind == "hub" or is_packaged(base):
        return f"`{base}`"
    return f"`{Path(base).name}`, a {'file' if kind == 'gguf' else 'folder'}"


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
    }
    return environment.get_template("card.jinja").render(
        facts=facts,
        part=part,
        front=_front(facts, part),
        agents=agents,
        own=[(agent, [agent]) for agent in agents],
        base={
            "kind": source_of(base).kind,
            "packaged": is_packaged(base),
            "name": json.dumps(
                Path(base).name if Path(base).is_absolute() else base, ensure_ascii=False
            ),
        },
        asked=len({answer["question"] for answer in answers}),
        started=dict.fromkeys(shown(part.bases[policy]) for policy in part.policies),
        process=process,
        settings=tomli_w.dumps(settings),
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
