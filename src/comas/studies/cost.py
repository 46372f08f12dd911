"""What of a study is left, whether its settings would be refused, and how many cells at once the
cores and the memory bear.

Leaves out: the formula (`comas.estimate`), time, which a dry run measures (`training.dry_run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comas import estimate
from comas.machine import memory_of, usable_cpus
from comas.questions.checked import of_run
from comas.studies.cells import Cell
from comas.studies.settings import Setting
from comas.types import UserMistake

PROCESS = 600_000_000
"""Bytes of a process beside what the formula counts: Python and its libraries."""
SPARE = 0.8
"""Share of the free memory that is planned with."""


@dataclass(frozen=True)
class Cost:
    """Of all that is left."""

    cells: int
    evaluations: int
    disk: int | None
    """Bytes of all checkpoints; None where a size is not known."""
    free_disk: int
    peak: int | None
    """Bytes of the largest cell; None where one is not known."""
    free_memory: int | None
    jobs: int
    threads: int
    mistakes: tuple[str, ...]
    """What training would refuse settings for."""

    def lines(self) -> list[str]:
        """What is said before anything runs."""
        if not self.cells:
            return ["nothing is left to run"]
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return [
            f"left:   {self.cells} cells, {self.evaluations} evaluations",
            f"memory: {_size(self.peak)} each, {_size(self.free_memory)} free",
            f"disk:   {_size(self.disk)}, {_size(self.free_disk)} free",
            f"jobs:   {self.jobs} at once, with {threads} each",
        ]

    def data(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    def check(self, file: Path) -> None:
        """An error where something would be refused, or where the disk is too small."""
        if self.mistakes:
            raise UserMistake(f"{file}: {self.mistakes[0]}")
        if self.disk is not None and self.disk > self.free_disk:
            raise UserMistake(
                f"{file}: the runs need about {self.disk / 1e9:.1f} GB on disk, and"
                f" {self.free_disk / 1e9:.1f} GB are free: free some, or set another out"
            )


def cost_of(cells: Sequence[Cell], out: Path, jobs: int | None) -> Cost:
    """Sum up the cells that have something left."""
    left = [cell for cell in cells if cell.stages()]
    mistakes: list[str] = []
    peaks: list[int | None] = []
    disk: list[int | None] = []
    free = memory_of("cpu").usable
    for setting in {cell.setting.name: cell.setting for cell in left}.values():
        resolved = setting.resolved
        try:
            of_run(resolved.config, resolved.task, note=lambda _: None)
            resolved, fit = estimate.fit(resolved)
            fit.check(resolved.config)
        except UserMistake as error:
            mistakes.append(f"setting {setting.name}: {error}")
            continue
        if any(host.unknown for host in fit.hosts):
            peaks.append(None)
        elif fit.memory:
            device, memory = next(iter(fit.memory.items()))
            free = memory.usable
            peaks.append(sum(host.peak for host in fit.on(device)))
        training = sum(cell.setting is setting and not cell.trained for cell in left)
        checkpoint = estimate.checkpoint_bytes(resolved)
        kept = estimate.KEPT_CHECKPOINTS * training
        disk.append(None if checkpoint is None else kept * checkpoint)
    known = [peak for peak in peaks if peak is not None]
    peak = max(known) + PROCESS if known and len(known) == len(peaks) else None
    threads = [cell.setting.resolved.config.threads or usable_cpus() for cell in left]
    most = max(threads, default=1)
    sizes = [size for size in disk if size is not None]
    return Cost(
        cells=len(left),
        evaluations=sum(len(cell.stages()) - (not cell.trained) for cell in left),
        disk=sum(sizes) if len(sizes) == len(disk) else None,
        free_disk=estimate.free_disk(str(out))[1],
        peak=peak,
        free_memory=free,
        jobs=jobs or jobs_for(peak, free, most, len(left)),
        threads=most,
        mistakes=tuple(mistakes),
    )


def jobs_for(peak: int | None, free: int | None, threads: int, cells: int) -> int:
    """Processes that the cores and the free memory bear; at least one."""
    by_cores = usable_cpus() // threads
    by_memory = by_cores
    if free is not None and peak is not None:
        by_memory = int(SPARE * free) // max(1, peak)
    return max(1, min(by_cores, by_memory, cells))


def alike(cells: Sequence[Cell]) -> list[list[Setting]]:
    """The trained settings, those with the same bases and engines together."""
    groups: dict[Any, dict[str, Setting]] = {}
    for setting in (cell.setting for cell in cells if cell.setting.trained):
        hosts = setting.resolved.config.hosts.values()
        engines = tuple((host.engine, host.device) for host in hosts)
        key = (*setting.resolved.base_names(), engines)
        groups.setdefault(key, {})[setting.name] = setting
    return [list(group.values()) for group in groups.values()]


def _size(count: int | None) -> str:
    return "not known" if count is None else f"{count / 1e9:.1f} GB"
