"""The weights of an exported team: adapters and whole models, copied, rounded or merged.

Leaves out: cards and `team.toml` (`export.team`), how adapters are merged
(`learners.lora.merging`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.policies import PolicyPlan
from comas.config.schema import Config
from comas.config.weights import weights_at
from comas.models.sources import ADAPTER, recorded_base, source_of
from comas.storage.run import Run
from comas.types import UserMistake

OPTIMIZER = "optimizer.safetensors"
BESIDE = 2_000_000
"""Bytes of what stands beside weights: cards, configs, tokenizers, rounded up."""
NUMBERS = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""


@dataclass
class Job:
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
    dtypes: dict[str, str] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)

    def policies(self, host: str | None = None) -> dict[str, str]:
        """Policy -> host; those whose weights are ours."""
        return {p.name: p.host for p in self.plans if host in (None, p.host)}

    def adapters(self) -> list[str]:
        """Those of them that are adapters."""
        found = weights_at(self.plans, self.source).adapters
        return [policy for policy in self.policies() if policy in found]


def write_host(job: Job, host: str) -> None:
    """All policies of one host: whole models are copied (or rounded), adapters are copied and
    merged.
    """
    policies = list(job.policies(host))
    adapters = [policy for policy in policies if policy in job.adapters()]
    whole = [policy for policy in policies if policy not in adapters]
    shrink = NUMBERS.get(job.dtype, 4) / 4
    adapter_bytes = sum(_size(job.source / policy) for policy in adapters)
    whole_bytes = sum(_size(job.source / policy) for policy in whole)
    _check_room(job, adapter_bytes + int(shrink * whole_bytes) + BESIDE)
    for policy in whole:
        _write_whole(job, policy, host)
    for policy in adapters:
        _write_adapter(job, policy)
    if adapters and job.merged:
        _write_merged(job, adapters, host)


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


def _write_whole(job: Job, policy: str, host: str) -> None:
    """Copy a whole model, or round it to the precision that was asked for."""
    from comas.learners.lora.merging import save_rounded

    source = job.source / policy
    folder = job.out / policy / "model"
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    stored = str(settings.get("dtype") or settings.get("torch_dtype") or "float32")
    if job.dtype in ("auto", stored):
        _copy(source, folder)
    else:
        _copy(source, folder, weights=False)
        save_rounded(source, folder, job.dtype, job.config.hosts[host].trust_remote_code)
    job.dtypes[policy] = stored if job.dtype == "auto" else job.dtype
    job.note(f"{policy}: model in {job.dtypes[policy]}")


def _write_merged(job: Job, adapters: Sequence[str], host: str) -> None:
    """Add adapters to their base, and write the whole models."""
    from comas.learners.lora.loading import load_population
    from comas.learners.lora.merging import dtype_of, model_bytes, save_merged

    sources = {policy: job.source / policy for policy in adapters}
    bases = {
        job.bases[policy] if job.base else recorded_base(source)
        for policy, source in sources.items()
    }
    assert len(bases) == 1, "adapters of a host share one base"
    places = {policy: str(source) for policy, source in sources.items()}
    remote = job.config.hosts[host].trust_remote_code
    try:
        base = source_of(bases.pop()).weights_of("")
        dtype = dtype_of(job.dtype)
        population, _, _ = load_population(places, base, "cpu", dtype, remote, {}, 0)
    except UserMistake as error:
        raise UserMistake(
            f"{error}; say where the base of host {host} is with --base, or export with --no-merged"
        ) from error
    model = population.model
    _check_room(job, len(adapters) * (model_bytes(model) + BESIDE))
    written = str(model.dtype).removeprefix("torch.")
    for policy in adapters:
        folder = job.out / policy / "model"
        _copy(sources[policy], folder, weights=False)
        gap = save_merged(population, policy, folder)
        job.gaps[policy] = gap
        job.dtypes[policy] = written
        job.note(f"{policy}: merged model in {written}; its log-probs differ by at most {gap:.1g}")


def _copy(source: Path, folder: Path, weights: bool = True) -> None:
    """A policy's folder without its optimizer; without `weights`, what stands beside them in any
    model: tokenizer, template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = ("model", "config.json", "generation_config.json", "adapter_")
    for file in _files_of(source):
        if weights or not file.name.startswith(model):
            shutil.copyfile(file, folder / file.name)


def _files_of(policy: Path) -> list[Path]:
    """The files of a policy's folder without its optimizer."""
    return [file for file in policy.iterdir() if file.is_file() and file.name != OPTIMIZER]


def _size(policy: Path) -> int:
    return sum(file.stat().st_size for file in _files_of(policy))


def _check_room(job: Job, need: int) -> None:
    """An error where the disk has fewer than `need` bytes free."""
    disk = job.out.parent
    free = shutil.disk_usage(disk).free
    if need > free:
        smaller = "export with --no-merged, or " if job.merged and job.adapters() else ""
        raise UserMistake(
            f"the export needs about {need / 1e9:.2f} GB more and {disk} has"
            f" {free / 1e9:.2f} GB free: free some, {smaller}choose another folder"
        )
