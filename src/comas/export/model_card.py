"""Model cards: what the hub reads (YAML), and what people do. Every number is one of the run's
folder; what was not measured is said to be so. Leaves out: finding the facts (`export.facts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from comas.export.facts import Facts, shown
from comas.storage.records import without_none

UNKNOWN = "not measured"
SETTINGS = (
    "lr",
    "betas",
    "weight_decay",
    "grad_norm",
    "epochs",
    "minibatches",
    "temperature",
    "max_tokens",
    "room",
    "options",
    "credit",
    "loss",
    "kl",
    "task_options",
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
    title = facts.name
    if part.kind != "team":
        title += f": {part.policies[0]}"
    sections = [
        _front(facts, part),
        f"# {title}",
        _opening(facts, part, agents),
        _use(part),
        "## Accuracy",
        _accuracy(facts, agents),
        _evaluations(facts),
        "## Data, seeds, costs",
        _data(facts, part),
        _cost(facts, agents),
        "## Settings",
        f"```toml\n{_settings(facts)}```",
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _front(facts: Facts, part: Part) -> str:
    """What the hub reads, as YAML."""
    of_adapter = part.kind == "adapter"
    lines = [
        f"library_name: {'peft' if of_adapter else 'transformers'}",
        "pipeline_tag: text-generation",
    ]
    if part.hub:
        lines += _yaml_bases([json.dumps(name) for name in part.hub])
        lines.append(f"base_model_relation: {'adapter' if of_adapter else 'finetune'}")
    method = facts.config.method.rpartition("/")[2]
    tags = ["comas", "multi-agent", "reinforcement-learning", method.removesuffix(".py")]
    if of_adapter or (part.kind == "team" and part.adapters):
        tags.append("lora")
    lines.append("tags:")
    lines += [f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags)]
    return "\n".join(["---", *lines, "---"])


def _yaml_bases(names: Sequence[str]) -> list[str]:
    if len(names) == 1:
        return [f"base_model: {names[0]}"]
    return ["base_model:", *(f"- {name}" for name in names)]


def _opening(facts: Facts, part: Part, agents: Sequence[str]) -> str:
    """What was trained, in a sentence or two."""
    config = facts.config
    how = f"method `{Path(config.method).name}`"
    if config.preset:
        how += f", preset `{config.preset}`"
    subject = {
        "team": f"A team of {len(config.agents)} agents that",
        "model": "A model that, in a team,",
        "adapter": "An adapter (LoRA) with which a model, in a team,",
    }
    is_team = part.kind == "team"
    source = "its members said of each other's work" if is_team else "the others said of its work"
    text = (
        f"{subject[part.kind]} discussed questions and learnt from what {source}, trained by"
        f" [comas](https://arxiv.org/abs/2510.08529) ({how}, task `{Path(config.task).name}`)."
    )
    if is_team:
        return text
    if part.kind == "model":
        text += f" Weights are in {part.dtype[part.policies[0]]}."
        if part.adapters:
            text += " Its adapter has been added to those of its base."
    others = [name for name in config.agents if name not in agents]
    if others:
        text += f" It was {', '.join(agents)}; the others were {', '.join(others)}."
    return text


def _use(part: Part) -> str:
    """How it is loaded."""
    if part.kind == "model":
        return _python(
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("this folder")',
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
        )
    if part.kind == "adapter":
        base = part.bases[part.policies[0]]
        if Path(base).is_absolute():
            base = Path(base).name
        return _python(
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base)})  # a hub name, or"
            " where it lies here",
            'model = PeftModel.from_pretrained(base, "this folder")',
        )
    table = ["| policy | started from | folders |", "|---|---|---|"]
    for policy in part.policies:
        base = shown(part.bases[policy])
        table.append(f"| `{policy}` | {base} | {_folders(policy, part)} |")
    loaded = _python(
        "import comas",
        "",
        'team = comas.load("this folder")',
        'print(team.discuss("a question").answer)',
    )
    return "\n".join([*table, "", "As a team:", "", loaded])


def _folders(policy: str, part: Part) -> str:
    """The folders of a policy, and who loads them."""
    folders: list[str] = []
    if policy in part.adapters:
        folders.append(f"`{policy}/adapter` (peft)")
    if policy in part.dtype:
        folders.append(f"`{policy}/model` (transformers, {part.dtype[policy]})")
    return ", ".join(folders)


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _accuracy(facts: Facts, agents: Sequence[str]) -> str:
    """Accuracies before and after training, of the team and of these agents."""
    after = "after"
    if "after" not in facts.answers:
        after += f" (not of this checkpoint, step {facts.step} of {facts.config.steps})"
    lines = [
        _questions(facts),
        "",
        f"| | before | {after} | gain |",
        "|---|---|---|---|",
        _accuracy_row(facts, "mean over the team"),
        *(_accuracy_row(facts, agent, [agent]) for agent in agents),
        "",
        f"On the validation split, at this step: {_or(facts.validation)}.",
    ]
    overlap = facts.overlap
    if overlap is not None:
        exact = len(overlap["exact"])
        near = len(overlap["near"])
        asked = f"Of the {overlap['tested']} held-out questions"
        lines.append(f"{asked}, {exact} were trained on and {near} nearly.")
    config = facts.config
    away = [name for name, agent in config.agents.items() if config.hosts[agent.host].api]
    if away:
        names = ", ".join(away)
        lines.append(f"Not measured for {names}, who answer from an API and do not change.")
    return "\n".join(lines)


def _questions(facts: Facts) -> str:
    """What was asked before and after training."""
    answers = facts.answers.get("after") or facts.answers.get("before") or []
    count = len({answer["question"] for answer in answers})
    if not count:
        return "No held-out questions were asked before or after this run."
    config = facts.config
    how = f"temperature {config.eval_temperature:g}"
    if config.eval_top_p < 1:
        how += f", top_p {config.eval_top_p:g}"
    return (
        f"Single answers to {count} held-out questions of `{Path(config.task).name}` at {how};"
        " 95 % intervals over questions."
    )


def _accuracy_row(facts: Facts, name: str, agents: Sequence[str] = ()) -> str:
    before = _or(facts.accuracy("before", agents))
    after = _or(facts.accuracy("after", agents))
    gain = _or(facts.gain(agents))
    return f"| {name} | {before} | {after} | {gain} |"


def _or(found: Any) -> str:
    return UNKNOWN if found is None else str(found)


def _evaluations(facts: Facts) -> str:
    """What evaluations of this checkpoint came to."""
    if not facts.cells:
        return "Evaluations besides (`comas eval`): none is recorded here."
    lines = [
        "Evaluations (`comas eval`), 95 % intervals:",
        "",
        "| task | setup | who | n | accuracy |",
        "|---|---|---|---|---|",
        *map(_cell_row, facts.cells),
    ]
    for comparison in facts.comparisons:
        lines += ["", _comparison(comparison)]
    return "\n".join(lines)


def _cell_row(cell: Mapping[str, Any]) -> str:
    span = [cell[key] for key in ("accuracy", "low", "high")]
    accuracy = UNKNOWN if None in span else "{:.3f} [{:.3f}, {:.3f}]".format(*span)
    names = [str(cell[key]) for key in ("task", "setup", "team", "n")]
    return f"| {' | '.join(names)} | {accuracy} |"


def _comparison(record: Mapping[str, Any]) -> str:
    first = record["first"]["label"]
    second = record["second"]["label"]
    bounds = (record["low"], record["high"])
    ends = ["?" if bound is None else f"{bound:+.3f}" for bound in bounds]
    difference = f"{record['difference']:+.3f} [{', '.join(ends)}]"
    test = f"p {record['p']:.4f} ({record['test']}, corrected)"
    where = f"{record['task']}, {record['setup']}"
    return f"{where}: {second} minus {first} {difference}, {test}: {record['verdict']}."


def _data(facts: Facts, part: Part) -> str:
    """A table of what it was trained on, with what, for how long."""
    config = facts.config
    discussions = "discussion" if config.samples == 1 else "discussions"
    rows = {
        "started from": "; ".join(_origins(facts, part)),
        "questions": _task(facts),
        "seed": config.seed,
        "steps": f"{facts.step} of {config.steps}",
        "per step": f"{config.questions} questions, {config.samples} {discussions} each",
        "generated tokens": f"{facts.tokens:,}, measurements not counted",
        "time": _time(facts),
        "memory at the peak": f"{facts.peak_bytes / 1e9:.2f} GB" if facts.peak_bytes else UNKNOWN,
        "machine": _process(facts, "processor", "devices", "threads"),
        "software": _process(facts, "comas", "python", "torch", "transformers"),
    }
    for policy in part.policies:
        if count := facts.updates.get(policy):
            updates = f"{count['updates']:.0f}, skipped {count['skipped']:.0f}"
            rows[f"updates of `{policy}`"] = updates
    for name, account in facts.api.items():
        rows[f"API host `{name}`, over the whole run"] = _account(account)
    table = [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *table])


def _origins(facts: Facts, part: Part) -> Iterable[str]:
    """What the policies started from."""
    if part.kind == "team":
        return facts.lineage
    return dict.fromkeys(shown(part.bases[policy]) for policy in part.policies)


def _task(facts: Facts) -> str:
    task = f"task `{Path(facts.config.task).name}`"
    data = facts.config.data
    return f"{task}, data `{Path(data).name}`" if data else task


def _time(facts: Facts) -> str:
    time = f"{facts.seconds:.1f} s"
    parts = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in facts.spent.items())
    return f"{time} (of it {parts})" if parts else time


def _process(facts: Facts, *keys: str) -> str:
    """These facts of the last process on the run."""
    known = [f"{key} {facts.process[key]}" for key in keys if key in facts.process]
    return ", ".join(known) or UNKNOWN


def _account(account: Mapping[str, Any]) -> str:
    """What a host behind an API has cost."""
    spent: Mapping[str, int] = account.get("spent", {})
    parts = [f"{count:,} {kind.replace('_', ' ')}" for kind, count in spent.items()]
    text = ", ".join(parts)
    if account.get("money"):
        text += f", money {account['money']:.4f}"
    return text or UNKNOWN


def _cost(facts: Facts, agents: Sequence[str]) -> str:
    """A table of what agents have cost over all steps."""
    everybody = list(facts.config.agents)
    lines = [
        (
            "Per agent, over all steps (seconds for which its turns were waited; turns that are"
            " answered side by side count each):"
        ),
        "",
        "| agent | turns | prompt tokens | generated tokens | seconds |",
        "|---|---|---|---|---|",
    ]
    for name in agents if len(agents) < len(everybody) else everybody:
        counts = [UNKNOWN] * 4
        if cost := facts.cost.get(name):
            counts = [f"{cost[kind]:,.0f}" for kind in ("turns", "prompt_tokens", "tokens")]
            counts.append(f"{cost['seconds']:,.1f}")
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines)


def _settings(facts: Facts) -> str:
    values = facts.config.model_dump(mode="json", include=set(SETTINGS))
    chosen = {key: values[key] for key in SETTINGS if values[key] != {}}
    return tomli_w.dumps(without_none(chosen))
