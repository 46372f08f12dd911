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

from comas.export.facts import Story, shown
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


def card(told: Story, part: Part) -> str:
    """The card as Markdown."""
    team = part.kind == "team"
    agents = [a for p in part.policies for a in told.agents(p)]
    title = told.name if team else f"{told.name}: {part.policies[0]}"
    sections = [
        _front(told, part),
        f"# {title}",
        _opening(told, part, agents),
        _use(part),
        "## Accuracy",
        _accuracy(told, agents),
        *_evaluations(told),
        "## Data, seeds, costs",
        _facts(told, part),
        _cost(told, agents),
        "## Settings",
        f"```toml\n{_settings(told)}```",
    ]
    return "\n\n".join(s.strip() for s in sections if s) + "\n"


def _front(told: Story, part: Part) -> str:
    lora = part.kind == "adapter" or (part.kind == "team" and part.adapters)
    tags = [
        "comas",
        "multi-agent",
        "reinforcement-learning",
        told.config.method.rpartition("/")[2].removesuffix(".py"),
    ]
    lines = [
        f"library_name: {'peft' if part.kind == 'adapter' else 'transformers'}",
        "pipeline_tag: text-generation",
    ]
    if part.hub:
        names = [json.dumps(name) for name in part.hub]
        lines += (
            [f"base_model: {names[0]}"]
            if len(names) == 1
            else ["base_model:", *(f"- {n}" for n in names)]
        )
        lines += [f"base_model_relation: {'adapter' if part.kind == 'adapter' else 'finetune'}"]
    lines += [
        "tags:",
        *(f"- {json.dumps(t)}" for t in dict.fromkeys([*tags, *(["lora"] if lora else [])])),
    ]
    return "\n".join(["---", *lines, "---"])


def _opening(told: Story, part: Part, agents: Sequence[str]) -> str:
    c = told.config
    how = f"method `{Path(c.method).name}`" + (f", preset `{c.preset}`" if c.preset else "")
    what = {
        "team": f"A team of {len(c.agents)} agents that",
        "model": "A model that, in a team,",
        "adapter": "An adapter (LoRA) with which a model, in a team,",
    }
    did = (
        f"{what[part.kind]} discussed questions and learnt from what the others said of its work,"
        f" trained by [comas](https://arxiv.org/abs/2510.08529) ({how}, task"
        f" `{Path(c.task).name}`)."
    )
    if part.kind == "team":
        return did.replace(
            "what the others said of its work", "what its members said of each other's work"
        )
    weights = f" Weights are in {part.dtype[part.policies[0]]}." if part.kind == "model" else ""
    merged = (
        " Its adapter has been added to those of its base."
        if part.kind == "model" and part.adapters
        else ""
    )
    others = [n for n in c.agents if n not in agents]
    return (
        did
        + weights
        + merged
        + (f" It was {', '.join(agents)}; the others were {', '.join(others)}." if others else "")
    )


def _use(part: Part) -> str:
    first = part.policies[0]
    if part.kind == "model":
        return _python(
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("this folder")',
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
        )
    base = (
        Path(part.bases[first]).name if Path(part.bases[first]).is_absolute() else part.bases[first]
    )
    if part.kind == "adapter":
        return _python(
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base)})  # a hub name, or"
            " where it lies here",
            'model = PeftModel.from_pretrained(base, "this folder")',
        )
    rows = [f"| `{p}` | {shown(part.bases[p])} | {_folders(p, part)} |" for p in part.policies]
    loaded = _python(
        "import comas",
        "",
        'team = comas.load("this folder")',
        'print(team.discuss("a question").answer)',
    )
    return (
        "\n".join(["| policy | started from | folders |", "|---|---|---|", *rows])
        + "\n\nAs a team:\n\n"
        + loaded
    )


def _folders(policy: str, part: Part) -> str:
    found = [f"`{policy}/adapter` (peft)"] if policy in part.adapters else []
    return ", ".join(
        found
        + (
            [f"`{policy}/model` (transformers, {part.dtype[policy]})"]
            if policy in part.dtype
            else []
        )
    )


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _accuracy(told: Story, agents: Sequence[str]) -> str:
    c = told.config
    team = list(told.config.agents)
    measured = told.answers.get("after") or told.answers.get("before") or []
    n = len({a["question"] for a in measured})
    rows = [("mean over the team", told.accuracy("before"), told.accuracy("after"), told.gain())]
    rows += [
        (a, told.accuracy("before", [a]), told.accuracy("after", [a]), told.gain([a]))
        for a in agents
    ]
    when = (
        "after"
        if "after" in told.answers
        else f"after (not of this checkpoint, step {told.step} of {c.steps})"
    )
    above = (
        f"Single answers to {n} held-out questions of `{Path(c.task).name}` at temperature"
        f" {c.eval_temperature:g}{f', top_p {c.eval_top_p:g}' if c.eval_top_p < 1 else ''}; 95 %"
        " intervals over questions."
        if n
        else "No held-out questions were asked before or after this run."
    )
    lines = [above, "", f"| | before | {when} | gain |", "|---|---|---|---|"]
    lines += [f"| {name} | {_or(b)} | {_or(a)} | {_or(g)} |" for name, b, a, g in rows]
    lines += ["", f"On the validation split, at this step: {_or(told.validation)}."]
    found = told.overlap
    if found is not None:
        exact = len(found["exact"])
        near = len(found["near"])
        lines += [
            f"Of the {found['tested']} held-out questions, {exact} were trained on and {near}"
            " nearly."
        ]
    if away := [a for a in team if c.hosts[c.agents[a].host].api]:
        lines += [f"Not measured for {', '.join(away)}, who answer from an API and do not change."]
    return "\n".join(lines)


def _or(found: Any) -> str:
    return UNKNOWN if found is None else str(found)


def _evaluations(told: Story) -> Iterable[str]:
    if not told.cells:
        return ["Evaluations besides (`comas eval`): none is recorded here."]
    lines = [
        "Evaluations (`comas eval`), 95 % intervals:",
        "",
        "| task | setup | who | n | accuracy |",
        "|---|---|---|---|---|",
    ]
    for c in told.cells:
        span = [c[k] for k in ("accuracy", "low", "high")]
        said = UNKNOWN if None in span else "{:.3f} [{:.3f}, {:.3f}]".format(*span)
        lines.append(f"| {c['task']} | {c['setup']} | {c['team']} | {c['n']} | {said} |")
    for d in told.comparisons:
        ends = [f"{d[k]:+.3f}" if d[k] is not None else "?" for k in ("low", "high")]
        lines += [
            "",
            (
                f"{d['task']}, {d['setup']}: {d['second']['label']} minus {d['first']['label']}"
                f" {d['difference']:+.3f} [{ends[0]}, {ends[1]}], p {d['p']:.4f} ({d['test']},"
                f" corrected): {d['verdict']}."
            ),
        ]
    return ["\n".join(lines)]


def _facts(told: Story, part: Part) -> str:
    c = told.config
    ran = told.process
    spent = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in told.spent.items())
    size = f"{told.peak_bytes / 1e9:.2f} GB" if told.peak_bytes else UNKNOWN
    bases = [part.bases[p] for p in part.policies]
    rows = {
        "started from": "; ".join(
            told.lineage if part.kind == "team" else dict.fromkeys(map(shown, bases))
        ),
        "questions": (
            f"task `{Path(c.task).name}`" + (f", data `{Path(c.data).name}`" if c.data else "")
        ),
        "seed": c.seed,
        "steps": f"{told.step} of {c.steps}",
        "per step": (
            f"{c.questions} questions, {c.samples} discussion{'s' if c.samples != 1 else ''} each"
        ),
        "generated tokens": f"{told.tokens:,}, measurements not counted",
        "time": f"{told.seconds:.1f} s" + (f" (of it {spent})" if spent else ""),
        "memory at the peak": size,
        "machine": (
            ", ".join(f"{k} {ran[k]}" for k in ("processor", "devices", "threads") if k in ran)
            or UNKNOWN
        ),
        "software": (
            ", ".join(
                f"{k} {ran[k]}" for k in ("comas", "python", "torch", "transformers") if k in ran
            )
            or UNKNOWN
        ),
    }
    for policy in part.policies:
        if told.updates.get(policy):
            count = told.updates[policy]
            rows[f"updates of `{policy}`"] = (
                f"{count['updates']:.0f}, skipped {count['skipped']:.0f}"
            )
    for name, account in told.api.items():
        known = ", ".join(
            f"{count:,} {what.replace('_', ' ')}"
            for what, count in account.get("spent", {}).items()
        )
        known += f", money {account['money']:.4f}" if account.get("money") else ""
        rows[f"API host `{name}`, over the whole run"] = known or UNKNOWN
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])


def _cost(told: Story, agents: Sequence[str]) -> str:
    named = agents if len(agents) < len(told.config.agents) else list(told.config.agents)
    rows = [
        (
            "Per agent, over all steps (seconds for which its turns were waited; turns that are"
            " answered side by side count each):"
        ),
        "",
        "| agent | turns | prompt tokens | generated tokens | seconds |",
        "|---|---|---|---|---|",
    ]
    for name in named:
        c = told.cost.get(name)
        counts = (
            [f"{c[k]:,.0f}" for k in ("turns", "prompt_tokens", "tokens")]
            + [f"{c['seconds']:,.1f}"]
            if c
            else [UNKNOWN] * 4
        )
        rows.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(rows)


def _settings(told: Story) -> str:
    given = told.config.model_dump(mode="json", include=set(SETTINGS))
    return tomli_w.dumps(
        without_none({k: given[k] for k in SETTINGS if given[k] not in (None, {})})
    )
