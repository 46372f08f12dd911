"""A checkpoint of a run for others: per policy folders that transformers and peft load, model
cards, and a `team.toml`.

Written beside its place and moved there last, sealed with `manifest.json`: a half of it never looks
whole. Cards are what the hub reads (YAML), and what people do: every number is one of the run's
folder, and what was not measured is said to be so. Leaves out: how adapters are merged
(`learners.lora.peft_folder`).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader

from comas.config.plugins import names_file
from comas.config.policies import PolicyPlan, policies_of
from comas.config.schema import Config, read
from comas.config.systems import opened
from comas.config.weights import weights_at
from comas.evaluation.accuracy import accuracy, paired_gain
from comas.models.sources import ADAPTER, TEAM, exported, is_packaged, recorded_base, source_of
from comas.stats import Interval
from comas.storage import files
from comas.storage.records import moved_in, without_none
from comas.storage.run import Run
from comas.types import UserMistake

MACHINE = ("out", "threads", "sandbox", "track")
"""Keys that are about a machine, not about the team, and stay behind; of hosts `device`, of
monitors files of somebody's own.
"""

OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True)
class Exported:
    """Record of what was written."""

    folder: Path
    run: Path
    step: int
    policies: Sequence[Mapping[str, Any]]
    """Each `policy, adapter, model, dtype, gap`: folders, or None; by how many nats log-probs of a
    merged model differ.
    """
    bytes: int
    """Size of the whole folder."""


@dataclass
class Job:
    """Export of a run: what is to be written, and what is known of what was written so far."""

    run: Run
    step: int
    config: Config
    plans: Mapping[str, PolicyPlan]
    """Plans of the policies whose weights are ours, by name."""
    adapters: Collection[str]
    """The policies that are adapters."""
    source: Path
    out: Path
    """Where it is written; moved when it is whole."""
    merged: bool
    base: str | None
    note: Callable[[str], Any]
    dtypes: dict[str, str] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)


def export(
    run: str | Path,
    folder: str | Path,
    *,
    merged: bool = True,
    base: str | None = None,
    note: Callable[[str], Any] = lambda text: None,
) -> Exported:
    """Write a run (`RUN`, `RUN@best`, `RUN@40`) to a new folder.

    Without `merged`, policies that are adapters get no whole model. `base` is where the adapters'
    base is found from now on. `note` gets messages on how it goes.
    """
    target = Path(os.path.expanduser(folder))
    trained, step = opened(os.path.expanduser(str(run)))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserMistake(f"{target} is not an empty folder: export to a new one")
    source = trained.intact(step)
    step = int(source.name.removeprefix("step-"))
    place = target.resolve()
    unfinished = place.with_name(place.name + ".part")
    config = read(trained.path / "config.toml")
    plans = {plan.name: plan for plan in policies_of(config) if plan.here}
    adapters = weights_at(list(plans.values()), source).adapters
    job = Job(trained, step, config, plans, adapters, source, unfinished, merged, base, note)
    job.bases |= {policy: _base(job, policy) for policy in plans}
    facts = facts_of(trained, step)
    for policy, steps in facts.moved.items():
        if not steps:
            note(f"{policy}: none of {step} steps moved it: it is exported as it began")
    plugins = _plugins(job)
    unfinished.mkdir(parents=True)  # not where another process is at it, or was killed
    try:
        _write(job, facts, plugins)
        if target.is_dir():  # an empty one
            target.rmdir()
        files.rename(unfinished, place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    policies: list[dict[str, Any]] = []
    for policy in plans:
        folders = {kind: target / policy / kind for kind in ("adapter", "model")}
        places = {kind: str(path) if path.is_dir() else None for kind, path in folders.items()}
        facts_known = {"dtype": job.dtypes.get(policy), "gap": job.gaps.get(policy)}
        policies.append({"policy": policy, **places, **facts_known})
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    return Exported(target, trained.path, step, policies, size)


def _write(job: Job, facts: Facts, plugins: Mapping[str, Path]) -> None:
    """Write weights, cards, the files of method and task, and `team.toml`; seal them."""
    adapters: dict[str, list[str]] = {}
    for policy, plan in job.plans.items():
        if policy in job.adapters:
            _write_adapter(job, policy)
            adapters.setdefault(plan.host, []).append(policy)
        else:
            _write_whole(job, policy)
    for host, of_host in adapters.items() if job.merged else ():  # copied, and merged as well
        _write_merged(job, of_host, host)
    _write_cards(job, facts)
    for name, file in plugins.items():
        shutil.copyfile(file, job.out / name)
    names = {str(file): name for name, file in plugins.items()}
    (job.out / TEAM).write_text(_team(job, names), encoding="utf-8")
    trained = {  # what policies started from that was trained itself, here or elsewhere
        plan.source.name
        for plan in job.plans.values()
        if plan.source.kind == "run" or (plan.source.kind != "tiny" and exported(plan.source.name))
    }
    earlier = [Path(name).name for name in sorted(trained)]
    run = job.run.path.resolve().name
    files.seal(job.out, {"run": run, "step": job.step, "earlier": earlier})


def _base(job: Job, policy: str) -> str:
    """Where the model that a policy started from is found: a hub name or a shipped model rather
    than a folder of this machine.
    """
    origin = job.plans[policy].source.origin
    if job.base:
        return job.base
    if policy not in job.adapters:
        return ", ".join(sorted(origin))
    recorded = recorded_base(job.source / policy)
    origin_or_recorded = next(iter(origin)) if len(origin) == 1 else recorded
    return recorded if Path(origin_or_recorded).is_absolute() else origin_or_recorded


def _plugins(job: Job) -> dict[str, Path]:
    """File name in the export -> method, task and tools of the run that are files."""
    files_of: dict[str, Path] = {}
    plugins = [("method", job.config.method), ("task", job.config.task)]
    plugins += [("tool", tool) for tool in job.config.tools]
    for kind, plugin in plugins:
        if not names_file(plugin):
            continue
        path = Path(plugin).resolve()
        if not path.is_file():
            raise UserMistake(
                f"{kind} {plugin} of this run is gone: put the file back; the team cannot be"
                " loaded without it"
            )
        is_free = files_of.get(path.name, path) == path
        files_of[path.name if is_free else f"{kind}-{path.name}"] = path
    return files_of


def _write_cards(job: Job, facts: Facts) -> None:
    """Write a card for the team, and one beside each model and adapter."""
    parts = [(job.out, "team", list(job.plans))]
    for policy in job.plans:
        parts += [(job.out / policy / kind, kind, [policy]) for kind in ("model", "adapter")]
    for folder, kind, policies in parts:
        if folder.is_dir():
            adapters = [policy for policy in policies if policy in job.adapters]
            part = Part(kind, policies, job.bases, job.dtypes, adapters)
            (folder / "README.md").write_text(card(facts, part), encoding="utf-8")


def _team(job: Job, plugins: Mapping[str, str]) -> str:
    """The run's config, in which every agent's base is its folder here, by its path from here."""
    table = without_none(job.config.model_dump(mode="json", exclude=set(MACHINE)))
    for kind in ("method", "task"):
        table[kind] = _place_here(table[kind], plugins)
    table["tools"] = [_place_here(tool, plugins) for tool in job.config.tools]
    if named := table.get("monitors"):
        table["monitors"] = [name for name in named if not names_file(name)]
        if not table["monitors"]:
            del table["monitors"]  # an empty list would watch nothing; the default set does
    for policy, plan in reversed(list(job.plans.items())):  # a host's base is its first policy
        folder = f"./{policy}/{'adapter' if policy in job.adapters else 'model'}"
        host = table["hosts"][plan.host]
        host.pop("device", None)
        host["base"] = folder
        for agent in (table["agents"][name] for name in plan.agents):
            agent["base"] = folder
            if agent.pop("lag", None) is not None:
                agent.pop("policy")  # it stays what it was
                agent["frozen"] = True
    run = job.run.path.resolve().name
    lags = [agent.lag for agent in job.config.agents.values()]
    earlier = "# Earlier selves are frozen as they were.\n" if any(lags) else ""
    head = (
        f"# The team of run {run} after {job.step} steps. Places are"
        " relative to this file:\n# comas play FOLDER, comas eval FOLDER, comas train"
        f" FOLDER/{TEAM} steps=20, comas.load(FOLDER)\n{earlier}\n"
    )
    return head + tomli_w.dumps(table)


def _place_here(plugin: str, plugins: Mapping[str, str]) -> str:
    """A method, task or tool as the export names it: a file by its copy."""
    copied = plugins.get(str(Path(plugin).resolve()))
    return plugin if copied is None else f"./{copied}"


# --- weights


def _write_adapter(job: Job, policy: str) -> None:
    """Copy an adapter, and name its base as others find it."""
    base = job.bases[policy]
    folder = job.out / policy / "adapter"
    _copy(job.source / policy, folder)
    settings = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base
    (folder / ADAPTER).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    is_local = not job.base and Path(base).is_absolute()
    hint = " (a folder of this machine: --base says where others find it)" if is_local else ""
    job.note(f"{policy}: adapter on {base}{hint}")


def _write_whole(job: Job, policy: str) -> None:
    """Copy a whole model."""
    source = job.source / policy
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    job.dtypes[policy] = str(settings.get("dtype") or settings.get("torch_dtype") or "float32")
    _copy(source, job.out / policy / "model")
    job.note(f"{policy}: model in {job.dtypes[policy]}")


def _write_merged(job: Job, adapters: Sequence[str], host: str) -> None:
    """Add adapters to their base, and write the whole models."""
    from comas.learners.lora.peft_folder import load_population, save_merged

    sources = {policy: job.source / policy for policy in adapters}
    bases = {recorded_base(source) if job.base is None else job.base for source in sources.values()}
    assert len(bases) == 1, "adapters of a host share one base"
    places = {policy: str(source) for policy, source in sources.items()}
    remote = job.config.hosts[host].trust_remote_code
    try:
        base = source_of(bases.pop()).weights_of("")
        population, _, _ = load_population(places, base, "cpu", "auto", remote, {}, 0)
    except UserMistake as error:
        raise UserMistake(
            f"{error}; say where the base of host {host} is with --base, or export with --no-merged"
        ) from error
    written = str(population.model.dtype).removeprefix("torch.")
    for policy in adapters:
        folder = job.out / policy / "model"
        _copy(sources[policy], folder, weights=False)
        gap = save_merged(population, policy, folder)
        job.gaps[policy] = gap
        job.dtypes[policy] = written
        job.note(
            f"{policy}: merged model in {written}; log-probs differ from those of adapter and base"
            f" by at most {gap:.1g}"
        )


def _copy(source: Path, folder: Path, weights: bool = True) -> None:
    """A policy's folder without its optimizer; without `weights`, what stands beside them in any
    model: tokenizer, template.

    Files that the checkpoint was not sealed with are left out, since what is exported is often
    published; those that it was sealed with were compared when it was opened, links as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = ("model", "config.json", "generation_config.json", "adapter_")
    sealed = (files.facts(source.parent) or {"files": {}})["files"]
    for file in source.iterdir():
        is_kept = f"{source.name}/{file.name}" in sealed and file.name != OPTIMIZER
        if is_kept and (weights or not file.name.startswith(model)):
            shutil.copyfile(file, folder / file.name)


# --- cards

UNKNOWN = "not measured"
SETTINGS = (
    *("lr", "betas", "weight_decay", "grad_norm", "epochs", "minibatches", "temperature"),
    *("max_tokens", "room", "options", "credit", "loss", "kl", "task_options"),
)


@dataclass(frozen=True)
class Part:
    """Subject of a card: `team`, or one policy's `model` or `adapter`."""

    kind: str
    policies: Sequence[str]
    bases: Mapping[str, str]
    """Policy -> hub name, shipped model or folder that it started from."""
    dtype: Mapping[str, str] = field(default_factory=dict)
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
    moved: dict[str, int] = field(default_factory=dict)
    """Policy (`host/name`) that learns -> steps in which its gradient was not 0."""
    validation: Interval | None = None
    """At this step."""
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """`before`, and `after` where it is of this step."""
    overlap: dict[str, Any] | None = None
    process: dict[str, Any] = field(default_factory=dict)
    """Facts about what the last process on the run ran on."""

    def accuracy(self, when: str, agents: Sequence[str] = ()) -> Interval | None:
        """Return the accuracy of single answers, `before` or `after`: of these agents, otherwise
        the mean over all.
        """
        return accuracy(self._answers_of(when, agents))

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
    """Read the facts of this run after `step` steps."""
    facts = Facts(run.path.resolve().name, step, read(run.path / "config.toml"))
    facts.overlap = run.read_eval("overlap")
    steps = list(itertools.takewhile(lambda metrics: metrics["step"] < step, run.metrics()))
    learning = [policy.address for policy in policies_of(facts.config) if policy.learns]
    facts.moved = moved_in(steps, learning)
    for metrics in steps:
        facts.tokens = metrics["tokens"]
        facts.seconds += metrics["seconds"]
        facts.peak_bytes = max(facts.peak_bytes or 0, metrics.get("peak_bytes") or 0) or None
        validation = metrics.get("validation") if metrics["step"] == step - 1 else None
        facts.validation = Interval(**validation) if validation else None
    for name in ("before", "after"):
        record = run.read_eval(name)
        if record and (name == "before" or record["step"] == step):
            facts.answers[name] = record["answers"]
    facts.process = next(reversed(run.processes()), {})
    return facts


def shown(base: str) -> str:
    """A base without the folders of the machine that it was used on."""
    kind = source_of(base).kind
    if kind == "tiny":
        return f"`{base}`, a small model that is shipped with comas"
    if kind == "hub" or is_packaged(base):
        return f"`{base}`"
    return f"`{Path(base).name}`, a {'file' if kind == 'gguf' else 'folder'}"


# --- how it is told


def card(facts: Facts, part: Part) -> str:
    """The card as Markdown: `card.jinja` with these facts."""
    config = facts.config
    plans = {plan.name: plan for plan in policies_of(config)}
    agents = [agent for policy in part.policies for agent in plans[policy].agents]
    answers = facts.answers.get("after") or facts.answers.get("before") or []
    values = config.model_dump(mode="json", include=set(SETTINGS))
    settings = without_none({key: values[key] for key in SETTINGS if values[key] != {}})
    base = part.bases[part.policies[0]]

    def process(*keys: str) -> str:
        entries = [f"{key} {facts.process[key]}" for key in keys if key in facts.process]
        return ", ".join(entries) or UNKNOWN

    environment = Environment(
        loader=PackageLoader("comas.export", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        # for a code span, in which nothing is markup
        "name": lambda path: " ".join(Path(path).name.replace("`", "'").split()),
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
    """Write what the hub reads, as YAML."""
    from huggingface_hub import ModelCardData

    of_adapter = part.kind == "adapter"
    method = facts.config.method.rpartition("/")[2].removesuffix(".py")
    tags = ["comas", "multi-agent", "reinforcement-learning", method]
    if of_adapter or (part.kind == "team" and part.adapters):
        tags.append("lora")
    bases = sorted({base for policy in part.policies for base in part.bases[policy].split(", ")})
    hub = [
        base
        for base in bases
        if source_of(base).kind == "hub" and not Path(base).exists() and base.count("/") < 2
    ]
    data = ModelCardData(
        library_name="peft" if of_adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=(hub[0] if len(hub) == 1 else hub) or None,
        tags=list(dict.fromkeys(tags)),
    )
    if hub:
        data["base_model_relation"] = "adapter" if of_adapter else "finetune"
    return data.to_yaml()
