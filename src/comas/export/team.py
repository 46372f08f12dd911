"""A checkpoint of a run for others: per policy folders that transformers and peft load, model
cards, and a `team.toml`.

Written beside its place and moved there last, sealed with `manifest.json`: a half of it never looks
whole. Leaves out: what cards say (`export.model_card`), how adapters are merged
(`learners.lora.merging`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from comas.config.policies import PolicyPlan, policies_of
from comas.config.schema import Config, read
from comas.config.systems import opened
from comas.config.weights import weights_at
from comas.export.facts import story
from comas.export.model_card import Part, card
from comas.models.sources import ADAPTER, TEAM, Source, exported, recorded_base, source_of
from comas.storage import files
from comas.storage.records import without_none
from comas.storage.run import Run
from comas.types import UserMistake

OPTIMIZER = "optimizer.safetensors"
MACHINE = ("out", "threads", "sandbox")
"""Keys that are about a machine, not about the team, and stay behind; of hosts `device`."""
BESIDE = 2_000_000
"""Bytes of what stands beside weights: cards, configs, tokenizers, rounded up."""
NUMBERS = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    run: Path
    step: int
    policies: Sequence[Mapping[str, Any]]
    """Each `policy, adapter, model, dtype, gap`: folders, or None; by how much log-probs of a
    merged model differ.
    """
    bytes: int


@dataclass
class _Job:
    run: Run
    step: int
    config: Config
    plans: Sequence[PolicyPlan]
    """Of the policies whose weights are ours."""
    source: Path
    out: Path
    """Where it is written; moved when it is whole."""
    merged: bool
    dtype: str
    base: str | None
    note: Callable[[str], Any]
    dtypes: dict[str, str] = field(default_factory=dict[str, str])
    bases: dict[str, str] = field(default_factory=dict[str, str])
    gaps: dict[str, float] = field(default_factory=dict[str, float])

    def policies(self, host: str | None = None) -> dict[str, str]:
        """Policy -> host; those whose weights are ours."""
        return {p.name: p.host for p in self.plans if host in (None, p.host)}

    def adapters(self) -> list[str]:
        """Those of them that are adapters."""
        found = weights_at(self.plans, self.source).adapters
        return [policy for policy in self.policies() if policy in found]


def export(
    run: str | Path,
    folder: str | Path,
    *,
    merged: bool = True,
    dtype: str = "auto",
    base: str | None = None,
    evaluations: Sequence[str] = (),
    note: Callable[[str], Any] = lambda text: None,
) -> Exported:
    """Write a run (`RUN`, `RUN@best`, `RUN@40`) to a new folder.

    Without `merged`, policies that are adapters get no whole model. `dtype` is that of whole
    models; auto is that of the checkpoint, for adapters that of their base. `base` is where the
    adapters' base is found from now on, `evaluations` are folders of `comas eval` to be told of in
    the cards. `note` is told how it goes.
    """
    target = Path(os.path.expanduser(folder))
    name = os.path.expanduser(str(run))
    trained, step = opened(name)
    if dtype != "auto" and dtype not in NUMBERS:
        raise UserMistake(f"dtype {dtype!r}: one of auto, {', '.join(NUMBERS)}")
    _check_place(target)
    source = trained.intact(step)
    step = int(source.name.removeprefix("step-"))
    part = target.resolve().with_name(target.resolve().name + ".part")
    config = read(trained.path / "config.toml")
    plans = [plan for plan in policies_of(config) if plan.here]
    job = _Job(trained, step, config, plans, source, part, merged, dtype, base, note)
    if base is not None and not job.adapters():
        raise UserMistake(
            f"--base {base}: {trained.path} has no adapters, its models are whole; leave it out"
        )
    for policy, host in job.policies().items():
        if not (source / policy).is_dir():
            raise UserMistake(
                f"{source} has no folder of policy {policy} of host {host}: config.toml is of"
                " another run"
            )
        job.bases[policy] = _base(job, policy)
    told = story(trained, step, evaluations)
    plugins = _plugins(job)
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    except FileExistsError:
        raise UserMistake(
            f"{part} is there already: another process exports to {target}, or one was killed; in"
            " that case remove it"
        ) from None
    try:
        for host in dict.fromkeys(job.policies().values()):
            _write_host(job, host)
        _write_cards(job, told)
        for name, file in plugins.items():
            shutil.copyfile(file, part / name)
        (part / TEAM).write_text(
            _team(job, {str(file): name for name, file in plugins.items()}), encoding="utf-8"
        )
        bases = {plan.source.name: plan.source for plan in plans}
        earlier = [Path(name).name for name in sorted(bases) if _trained_before(bases[name])]
        files.seal(part, {"run": trained.path.resolve().name, "step": step, "earlier": earlier})
        if target.is_dir():  # an empty one
            target.rmdir()
        files.rename(part, target.resolve())
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return _exported(job, target)


def _trained_before(source: Source) -> bool:
    """Whether a policy started from what was trained, here or elsewhere."""
    return source.kind == "run" or (source.kind != "seed" and bool(exported(source.name)))


def _check_place(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise UserMistake(f"{target} is not empty: export to a new folder")
    if target.exists() and not target.is_dir():
        raise UserMistake(f"{target} is a file: export to a new folder")


def _base(job: _Job, policy: str) -> str:
    """Where the model that a policy started from is found: a hub name or a shipped model rather
    than a folder of this machine.
    """
    plan = next(plan for plan in job.plans if plan.name == policy)
    origin = plan.source.origin
    if job.base:
        return job.base
    if policy not in job.adapters():
        return ", ".join(sorted(origin))
    recorded = recorded_base(job.source / policy)
    named = next(iter(origin)) if len(origin) == 1 else recorded
    return recorded if Path(named).is_absolute() else named


def _plugins(job: _Job) -> dict[str, Path]:
    """File name in the export -> method and task of the run that are files."""
    found: dict[str, Path] = {}
    for kind in ("method", "task"):
        if (said := getattr(job.config, kind)).endswith(".py"):
            path = Path(said).resolve()
            if not path.is_file():
                raise UserMistake(
                    f"{kind} {said} of this run is gone: put the file back; the team cannot be"
                    " loaded without it"
                )
            name = path.name if found.get(path.name, path) == path else f"{kind}-{path.name}"
            found[name] = path
    return found


def _write_host(job: _Job, host: str) -> None:
    """All policies of one host: whole models are copied (or rounded), adapters are copied and
    merged.
    """
    policies = list(job.policies(host))
    adapters = [p for p in policies if p in job.adapters()]
    whole = [p for p in policies if p not in adapters]
    shrink = NUMBERS.get(job.dtype, 4) / 4
    need = sum(_size(job.source / p) for p in adapters) + int(
        shrink * sum(_size(job.source / p) for p in whole)
    )
    _check_room(job, need + BESIDE)
    for policy in whole:
        _write_whole(job, policy, host)
    for policy in adapters:
        folder = job.out / policy / "adapter"
        _copy(job.source / policy, folder)
        facts = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
        (folder / ADAPTER).write_text(
            json.dumps({**facts, "base_model_name_or_path": job.bases[policy]}, indent=2) + "\n",
            encoding="utf-8",
        )
        local = not job.base and Path(job.bases[policy]).is_absolute()
        there = " (a folder of this machine: --base says where others find it)" if local else ""
        job.note(f"{policy}: adapter on {job.bases[policy]}{there}")
    if adapters and job.merged:
        _write_merged(job, adapters, host)


def _write_whole(job: _Job, policy: str, host: str) -> None:
    from comas.learners.lora.merging import save_rounded

    source = job.source / policy
    folder = job.out / policy / "model"
    facts = json.loads((source / "config.json").read_text(encoding="utf-8"))
    stored = str(facts.get("dtype") or facts.get("torch_dtype") or "float32")
    if job.dtype in ("auto", stored):
        _copy(source, folder)
    else:
        _copy(source, folder, weights=False)
        save_rounded(source, folder, job.dtype, job.config.hosts[host].trust_remote_code)
    job.dtypes[policy] = stored if job.dtype == "auto" else job.dtype
    job.note(f"{policy}: model in {job.dtypes[policy]}")


def _write_merged(job: _Job, adapters: Sequence[str], host: str) -> None:
    from comas.learners.lora.loading import load_population
    from comas.learners.lora.merging import dtype_of, model_bytes, save_merged

    below = {job.bases[p] if job.base else recorded_base(job.source / p) for p in adapters}
    assert len(below) == 1, "adapters of a host share one base"
    sources = {p: str(job.source / p) for p in adapters}
    remote = job.config.hosts[host].trust_remote_code
    try:
        under = source_of(below.pop()).weights_of("")
        dtype = dtype_of(job.dtype)
        population, _, _ = load_population(sources, under, "cpu", dtype, remote, {}, 0)
    except UserMistake as error:
        raise UserMistake(
            f"{error}; say where the base of host {host} is with --base, or export with --no-merged"
        ) from error
    _check_room(job, len(adapters) * (model_bytes(population.model) + BESIDE))
    for policy in adapters:
        folder = job.out / policy / "model"
        _copy(job.source / policy, folder, weights=False)
        job.gaps[policy] = save_merged(population, policy, folder)
        job.dtypes[policy] = str(population.model.dtype).removeprefix("torch.")
        job.note(
            f"{policy}: merged model in {job.dtypes[policy]}; its log-probs differ by at most"
            f" {job.gaps[policy]:.1g}"
        )


def _copy(source: Path, folder: Path, weights: bool = True) -> None:
    """A policy's folder without its optimizer; without `weights`, what stands beside them in any
    model: tokenizer, template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = ("model", "config.json", "generation_config.json", "adapter_")
    for file in source.iterdir():
        if (
            file.is_file()
            and file.name != OPTIMIZER
            and (weights or not file.name.startswith(model))
        ):
            shutil.copyfile(file, folder / file.name)


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file() and p.name != OPTIMIZER)


def _check_room(job: _Job, need: int) -> None:
    free = shutil.disk_usage(job.out.parent).free
    if need > free:
        smaller = "export with --no-merged, or " if job.merged and job.adapters() else ""
        raise UserMistake(
            f"the export needs about {need / 1e9:.2f} GB more and {job.out.parent} has"
            f" {free / 1e9:.2f} GB free: free some, {smaller}choose another folder"
        )


def _write_cards(job: _Job, told: Any) -> None:
    policies = list(job.policies())
    adapters = job.adapters()
    hub = sorted(
        {
            b
            for p in policies
            for b in job.bases[p].split(", ")
            if source_of(b).kind == "hub" and not Path(b).exists() and b.count("/") < 2
        }
    )
    team = Part("team", policies, job.bases, hub, job.dtypes, adapters)
    (job.out / "README.md").write_text(card(told, team), encoding="utf-8")
    for policy in policies:
        for kind in ("model", "adapter"):
            if (job.out / policy / kind).is_dir():
                own = [b for b in hub if b in job.bases[policy].split(", ")]
                part = replace(
                    team,
                    kind=kind,
                    policies=[policy],
                    hub=own,
                    adapters=[p for p in adapters if p == policy],
                )
                (job.out / policy / kind / "README.md").write_text(
                    card(told, part), encoding="utf-8"
                )


def _team(job: _Job, plugins: Mapping[str, str]) -> str:
    """The run's config, in which every agent's base is its folder here, by its path from here."""
    data = without_none(job.config.model_dump(mode="json", exclude=set(MACHINE)))
    adapters = job.adapters()
    for kind in ("method", "task"):
        if (name := plugins.get(str(Path(data[kind]).resolve()))) is not None:
            data[kind] = f"./{name}"
    policies = {name: plan.name for plan in job.plans for name in plan.agents}
    for name, agent in data["agents"].items():
        if (policy := policies.get(name)) is not None:
            agent["base"] = f"./{policy}/{'adapter' if policy in adapters else 'model'}"
            host = data["hosts"][agent["host"]]
            host.pop("device", None)
            first = next(iter(job.policies(agent["host"])))
            host["base"] = f"./{first}/{'adapter' if first in adapters else 'model'}"
    head = (
        f"# The team of run {job.run.path.resolve().name} after {job.step} steps. Places are"
        " relative to this file:\n# comas play FOLDER, comas eval FOLDER, comas train"
        f" FOLDER/{TEAM} steps=20, comas.load(FOLDER)\n\n"
    )
    return head + tomli_w.dumps(data)


def _exported(job: _Job, target: Path) -> Exported:
    told: list[dict[str, Any]] = []
    for policy in job.policies():
        places = {kind: target / policy / kind for kind in ("adapter", "model")}
        folders = {kind: str(place) if place.is_dir() else None for kind, place in places.items()}
        told.append(
            {
                "policy": policy,
                **folders,
                "dtype": job.dtypes.get(policy),
                "gap": job.gaps.get(policy),
            }
        )
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    return Exported(target, job.run.path, job.step, told, size)
