"""What a study is going to cost: hours, disk and memory of what is left to run, and how many cells
at once.

Every setting is estimated as `comas train --dry-run` does it, once for settings that cost the same;
evaluations by their replies. Leaves out: the estimates (`forecast`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comas.config.rehearsal import turns_asked
from comas.evaluation import ways
from comas.forecast import overview
from comas.forecast.disk import disk_of
from comas.machine import memory_of, usable_cpus
from comas.storage import files
from comas.studies.cells import Cell
from comas.studies.checks import team_outline
from comas.studies.file import Measure
from comas.studies.settings import Setting
from comas.types import UserMistake

PROCESS = 600_000_000
"""Bytes of a process beside what the estimate counts: Python and its libraries."""
ESTIMATES = "estimates.json"
START = 6.0
"""Seconds in which a command is ready to begin."""
SPARE = 0.8
"""Share of the free memory that is planned with."""
FREE_OF_COST = ("lr", "betas", "weight_decay", "grad_norm", "schedule", "warmup", "credit", "loss")
"""Keys that change nothing of what a run costs."""


@dataclass(frozen=True)
class SettingCost:
    """Of one run of a setting."""

    seconds: float | None
    """None where it cannot be timed."""
    reply: float
    """Seconds of a reply to a held-out question, in an evaluation."""
    peak: int | None
    """Bytes of memory at the peak; None where that is not known."""
    device: str
    disk: int | None
    mistake: str
    """What training would refuse it for."""
    untimed: str


@dataclass(frozen=True)
class Cost:
    """Of all that is left."""

    cells: int
    evaluations: int
    seconds: float | None
    """Of one process after another; None where a setting cannot be timed."""
    untimed: str
    disk: int | None
    free_disk: int
    peak: int | None
    """Bytes of the largest cell."""
    free_memory: int | None
    jobs: int
    threads: int
    mistakes: tuple[str, ...]

    @property
    def hours_seconds(self) -> float | None:
        """Seconds with so many processes side by side, as they share the work."""
        if self.seconds is None:
            return None
        return self.seconds / max(1, min(self.jobs, self.cells))


def cost_of(
    cells: Sequence[Cell], out: Path, jobs: int | None, note: Callable[[str], None]
) -> Cost:
    """Estimate the cells that have something left; `note` is told which setting is being timed."""
    left = [cell for cell in cells if cell.stages()]
    costs: dict[str, SettingCost] = {}
    known = _read_estimates(out)
    for setting in _settings(left):
        kind = _kind(setting)
        if kind not in known:
            note(f"timing {setting.name}")
            known[kind] = _estimated(setting, out)
        costs[setting.name] = known[kind]
    if out.is_dir():
        _write_estimates(out, known)
    return _summed(left, costs, out, jobs)


def _read_estimates(out: Path) -> dict[str, SettingCost]:
    """Those of an earlier process: a study that goes on begins at once."""
    try:
        written = files.read_object(out / ESTIMATES) or {}
        return {kind: SettingCost(**facts) for kind, facts in written.items()}
    except (UserMistake, TypeError):  # of another version: they are made anew
        return {}


def _write_estimates(out: Path, known: Mapping[str, SettingCost]) -> None:
    """Write down those of settings that can be run."""
    sound = {kind: asdict(found) for kind, found in known.items() if not found.mistake}
    files.replace(out / ESTIMATES, files.as_json(sound, indent=1))


def _settings(cells: Sequence[Cell]) -> list[Setting]:
    return list({cell.setting.name: cell.setting for cell in cells}.values())


def _kind(setting: Setting) -> str:
    """Equal for settings that cost the same."""
    essence = {key: v for key, v in setting.essence.items() if key not in FREE_OF_COST}
    hosts = {
        name: {key: v for key, v in table.items() if key not in FREE_OF_COST}
        for name, table in essence["hosts"].items()
    }
    text = json.dumps({**essence, "hosts": hosts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _estimated(setting: Setting, out: Path) -> SettingCost:
    config = setting.resolved.config.model_copy(update={"out": None})
    plan = overview.plan(config)
    hours = plan.hours
    devices = [device for device in plan.fit.memory if plan.fit.peak_of(device)]
    device = devices[0] if devices else "cpu"
    reply = 0.0
    if hours is not None and config.test_questions:
        reply = hours.parts["measuring after"] / (config.test_questions * len(config.agents))
    return SettingCost(
        seconds=None if hours is None else hours.total,
        reply=reply,
        peak=plan.fit.peak_of(device) if devices else None,
        device=device,
        disk=_run_disk(setting, plan),
        mistake=plan.mistake,
        untimed=plan.untimed,
    )


def _run_disk(setting: Setting, plan: overview.Plan) -> int | None:
    """Bytes that a run writes in the steps that its tokens allow."""
    if plan.hours is None:
        return plan.disk.needed
    config = plan.config.model_copy(update={"steps": plan.hours.steps})
    return disk_of(setting.resolved.with_config(config)).needed


def _summed(
    cells: Sequence[Cell], costs: dict[str, SettingCost], out: Path, jobs: int | None
) -> Cost:
    seconds = 0.0
    timed = True
    evaluations = 0
    for cell in cells:
        found = costs[cell.setting.name]
        timed = timed and found.seconds is not None
        if not cell.trained:
            seconds += (found.seconds or 0.0) + START
        for measure in _left(cell):
            evaluations += 1
            seconds += START + found.reply * replies_of(cell.setting, measure)
    all_costs = list(costs.values())
    peaks = [found.peak for found in all_costs]
    known_peaks = [peak for peak in peaks if peak is not None]
    peak = max(known_peaks) + PROCESS if known_peaks == peaks and peaks else None
    devices = {found.device for found in all_costs}
    free = memory_of(devices.pop() if len(devices) == 1 else "cpu").usable
    threads = max((_threads(cell.setting) for cell in cells), default=1)
    return Cost(
        cells=len(cells),
        evaluations=evaluations,
        seconds=seconds if timed else None,
        untimed=next((found.untimed for found in all_costs if found.seconds is None), ""),
        disk=_disk(cells, costs),
        free_disk=_free_disk(out),
        peak=peak,
        free_memory=free,
        jobs=jobs or jobs_for(peak, free, threads, len(cells)),
        threads=threads,
        mistakes=tuple(
            f"setting {name}: {found.mistake}" for name, found in costs.items() if found.mistake
        ),
    )


def _disk(cells: Sequence[Cell], costs: dict[str, SettingCost]) -> int | None:
    """Bytes of all runs that are left; None where one is not known."""
    total = 0
    for cell in cells:
        needed = costs[cell.setting.name].disk
        if needed is None:
            return None
        total += 0 if cell.trained else needed
    return total


def _left(cell: Cell) -> Iterator[Measure]:
    """The evaluations that a cell has left."""
    names = {stage.name for stage in cell.stages()}
    for name, measure in cell.evaluations.items():
        if name in names:
            yield measure


def replies_of(setting: Setting, measure: Measure) -> int:
    """Replies that an evaluation asks for."""
    assert measure.setup is not None
    team = team_outline(setting, measure)
    way = ways.way(measure.setup, team)
    players = ways.players(team, way)
    turns = [
        turns_asked(way.method, team.task, len(members), way.options)
        for members in players.values()
    ]
    return measure.games * sum(turns)


def _threads(setting: Setting) -> int:
    return setting.resolved.config.threads or usable_cpus()


def jobs_for(peak: int | None, free: int | None, threads: int, cells: int) -> int:
    """Processes that the cores and the free memory bear; at least one."""
    by_cores = usable_cpus() // threads
    by_memory = by_cores
    if free is not None and peak is not None:
        by_memory = int(SPARE * free) // max(1, peak)
    return max(1, min(by_cores, by_memory, cells))


def _free_disk(out: Path) -> int:
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(place).free


def cost_lines(cost: Cost) -> list[str]:
    """What is said before anything runs."""
    if not cost.cells:
        return ["nothing is left to run"]
    runs = f"{cost.cells} cells, {cost.evaluations} evaluations"
    threads = "1 thread" if cost.threads == 1 else f"{cost.threads} threads"
    return [
        f"left:   {runs}",
        f"time:   {_time(cost)}",
        f"memory: {_size(cost.peak)} each, {_size(cost.free_memory)} free",
        f"disk:   {_size(cost.disk)}, {_size(cost.free_disk)} free",
        f"jobs:   {cost.jobs} at once, with {threads} each",
    ]


def _size(count: int | None) -> str:
    return "not known" if count is None else f"{count / 1e9:.1f} GB"


def _time(cost: Cost) -> str:
    side_by_side = cost.hours_seconds
    if side_by_side is None or cost.seconds is None:
        return f"not known: {cost.untimed}"
    return (
        f"about {overview.spoken(side_by_side)} ({overview.spoken(cost.seconds)} of one process), a"
        " guess"
    )


def cost_data(cost: Cost) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "cells": cost.cells,
        "evaluations": cost.evaluations,
        "seconds": cost.hours_seconds,
        "process_seconds": cost.seconds,
        "disk": {"needed": cost.disk, "free": cost.free_disk},
        "memory": {"peak": cost.peak, "free": cost.free_memory},
        "jobs": cost.jobs,
        "threads": cost.threads,
    }


def check_cost(cost: Cost, file: Path) -> None:
    """An error where something would be refused, or where the disk is too small."""
    if cost.mistakes:
        raise UserMistake(f"{file}: {cost.mistakes[0]}")
    if cost.disk is not None and cost.disk > cost.free_disk:
        raise UserMistake(
            f"{file}: the runs need about {cost.disk / 1e9:.1f} GB on disk, and"
            f" {cost.free_disk / 1e9:.1f} GB are free: free some, or set another out"
        )
