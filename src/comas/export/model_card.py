"""Model cards: what the hub reads (YAML), and what people do. Every number is one of the run's
folder; what was not measured is said to be so. Leaves out: finding the facts (`export.facts`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from comas.export.facts import Facts, shown
from comas.storage.records import without_none

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


def card(facts: Facts, part: Part) -> str:
    """The card as Markdown."""
    agents = [agent for policy in part.policies for agent in facts.agents(policy)]
    own = "" if part.kind == "team" else f": {part.policies[0]}"
    values = facts.config.model_dump(mode="json", include=set(SETTINGS))
    settings = without_none({key: values[key] for key in SETTINGS if values[key] != {}})
    sections = [
        _front(facts, part),
        f"# {facts.name}{own}",
        _opening(facts, part, agents),
        _use(part),
        "## Accuracy",
        _accuracy(facts, agents),
        _evaluations(facts),
        "## Data, seeds, costs",
        _data(facts, part),
        _cost(facts, agents),
        "## Settings",
        f"```toml\n{tomli_w.dumps(settings)}```",
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"| {heading} " if heading else "| " for heading in headings) + "|"
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in rows]
    return "\n".join([head, "|---" * len(headings) + "|", *lines])


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
    return f"---\n{data.to_yaml()}\n---"


def _opening(facts: Facts, part: Part, agents: Sequence[str]) -> str:
    """What was trained, in a sentence or two."""
    config = facts.config
    preset = f", preset `{config.preset}`" if config.preset else ""
    subject = {
        "team": f"A team of {len(config.agents)} agents that",
        "model": "A model that, in a team,",
        "adapter": "An adapter (LoRA) with which a model, in a team,",
    }[part.kind]
    is_team = part.kind == "team"
    source = "its members said of each other's work" if is_team else "the others said of its work"
    text = (
        f"{subject} discussed questions and learnt from what {source}, trained by"
        f" [comas](https://arxiv.org/abs/2510.08529) (method `{Path(config.method).name}`{preset},"
        f" task `{Path(config.task).name}`)."
    )
    if part.kind == "model":
        text += f" Weights are in {part.dtype[part.policies[0]]}."
        if part.adapters:
            text += " Its adapter has been added to those of its base."
    others = [name for name in config.agents if name not in agents]
    if others and not is_team:
        text += f" It was {', '.join(agents)}; the others were {', '.join(others)}."
    return text


MODEL = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder")
tokenizer = AutoTokenizer.from_pretrained("this folder")
```"""
ADAPTER = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained({base})  # a hub name, or where it lies here
model = PeftModel.from_pretrained(base, "this folder")
```"""
TEAM = """As a team:

```python
import comas

team = comas.load("this folder")
print(team.discuss("a question").answer)
```"""


def _use(part: Part) -> str:
    """How it is loaded."""
    if part.kind == "model":
        return MODEL
    if part.kind == "adapter":
        base = part.bases[part.policies[0]]
        name = Path(base).name if Path(base).is_absolute() else base
        return ADAPTER.format(base=json.dumps(name))
    rows: list[tuple[str, ...]] = []
    for policy in part.policies:
        folders = [f"`{policy}/adapter` (peft)"] if policy in part.adapters else []
        if policy in part.dtype:
            folders.append(f"`{policy}/model` (transformers, {part.dtype[policy]})")
        rows.append((f"`{policy}`", shown(part.bases[policy]), ", ".join(folders)))
    return f"{_table(('policy', 'started from', 'folders'), rows)}\n\n{TEAM}"


def _accuracy(facts: Facts, agents: Sequence[str]) -> str:
    """Accuracies before and after training, of the team and of these agents."""
    config = facts.config
    answers = facts.answers.get("after") or facts.answers.get("before") or []
    count = len({answer["question"] for answer in answers})
    asked = "No held-out questions were asked before or after this run."
    if count:
        top_p = f", top_p {config.eval_top_p:g}" if config.eval_top_p < 1 else ""
        asked = (
            f"Single answers to {count} held-out questions of `{Path(config.task).name}` at"
            f" temperature {config.eval_temperature:g}{top_p}; 95 % intervals over questions."
        )
    after = "after"
    if "after" not in facts.answers:
        after += f" (not of this checkpoint, step {facts.step} of {config.steps})"
    whose = {"mean over the team": [], **{agent: [agent] for agent in agents}}
    rows: list[tuple[str, ...]] = []
    for name, of in whose.items():
        found = (facts.accuracy("before", of), facts.accuracy("after", of), facts.gain(of))
        rows.append((name, *map(_or, found)))
    lines = [
        asked,
        "",
        _table(("", "before", after, "gain"), rows),
        "",
        f"On the validation split, at this step: {_or(facts.validation)}.",
    ]
    if facts.overlap is not None:
        exact, near = (len(facts.overlap[kind]) for kind in ("exact", "near"))
        tested = f"Of the {facts.overlap['tested']} held-out questions"
        lines.append(f"{tested}, {exact} were trained on and {near} nearly.")
    away = [name for name, agent in config.agents.items() if config.hosts[agent.host].api]
    if away:
        names = ", ".join(away)
        lines.append(f"Not measured for {names}, who answer from an API and do not change.")
    return "\n".join(lines)


def _or(found: Any) -> str:
    return UNKNOWN if found is None else str(found)


def _evaluations(facts: Facts) -> str:
    """What evaluations of this checkpoint came to."""
    if not facts.cells:
        return "Evaluations besides (`comas eval`): none is recorded here."
    rows: list[tuple[Any, ...]] = []
    for cell in facts.cells:
        span = [cell[key] for key in ("accuracy", "low", "high")]
        accuracy = UNKNOWN if None in span else "{:.3f} [{:.3f}, {:.3f}]".format(*span)
        rows.append((*(cell[key] for key in ("task", "setup", "team", "n")), accuracy))
    lines = [
        "Evaluations (`comas eval`), 95 % intervals:",
        "",
        _table(("task", "setup", "who", "n", "accuracy"), rows),
    ]
    for record in facts.comparisons:
        ends = [
            "?" if bound is None else f"{bound:+.3f}" for bound in (record["low"], record["high"])
        ]
        lines += [
            "",
            f"{record['task']}, {record['setup']}: {record['second']['label']} minus"
            f" {record['first']['label']} {record['difference']:+.3f} [{', '.join(ends)}],"
            f" p {record['p']:.4f} ({record['test']}, corrected): {record['verdict']}.",
        ]
    return "\n".join(lines)


def _data(facts: Facts, part: Part) -> str:
    """A table of what it was trained on, with what, for how long."""
    config = facts.config

    def process(*keys: str) -> str:
        known = [f"{key} {facts.process[key]}" for key in keys if key in facts.process]
        return ", ".join(known) or UNKNOWN

    bases = dict.fromkeys(shown(part.bases[policy]) for policy in part.policies)
    data = f", data `{Path(config.data).name}`" if config.data else ""
    discussions = "discussion" if config.samples == 1 else "discussions"
    spent = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in facts.spent.items())
    rows: dict[str, Any] = {
        "started from": "; ".join(facts.lineage if part.kind == "team" else bases),
        "questions": f"task `{Path(config.task).name}`{data}",
        "seed": config.seed,
        "steps": f"{facts.step} of {config.steps}",
        "per step": f"{config.questions} questions, {config.samples} {discussions} each",
        "generated tokens": f"{facts.tokens:,}, measurements not counted",
        "time": f"{facts.seconds:.1f} s" + (f" (of it {spent})" if spent else ""),
        "memory at the peak": f"{facts.peak_bytes / 1e9:.2f} GB" if facts.peak_bytes else UNKNOWN,
        "machine": process("processor", "devices", "threads"),
        "software": process("comas", "python", "torch", "transformers"),
    }
    for policy in part.policies:
        if count := facts.updates.get(policy):
            updates = f"{count['updates']:.0f}, skipped {count['skipped']:.0f}"
            rows[f"updates of `{policy}`"] = updates
    for name, account in facts.api.items():
        kinds = account.get("spent", {}).items()
        costs = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in kinds)
        costs += f", money {account['money']:.4f}" if account.get("money") else ""
        rows[f"API host `{name}`, over the whole run"] = costs or UNKNOWN
    return _table(("", ""), list(rows.items()))


def _cost(facts: Facts, agents: Sequence[str]) -> str:
    """A table of what agents have cost over all steps."""
    everybody = list(facts.config.agents)
    rows: list[tuple[str, ...]] = []
    for name in agents if len(agents) < len(everybody) else everybody:
        counts = [UNKNOWN] * 4
        if cost := facts.cost.get(name):
            counts = [f"{cost[kind]:,.0f}" for kind in ("turns", "prompt_tokens", "tokens")]
            counts.append(f"{cost['seconds']:,.1f}")
        rows.append((name, *counts))
    return (
        "Per agent, over all steps (seconds for which its turns were waited; turns that are"
        " answered side by side count each):\n\n"
        + _table(("agent", "turns", "prompt tokens", "generated tokens", "seconds"), rows)
    )
