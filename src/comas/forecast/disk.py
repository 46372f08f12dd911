"""Whether what a run is going to write fits on the disk.

Leaves out: the estimate (`forecast.memory`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from comas.config.policies import Resolved
from comas.forecast.memory import estimate
from comas.types import UserMistake


@dataclass(frozen=True)
class Disk:
    """What a run is going to write, and where, in bytes."""

    needed: int | None
    """None where the sizes of its models are not known before they are loaded."""
    free: int
    place: Path


def disk_of(resolved: Resolved) -> Disk:
    """Of a run with this config."""
    place = Path(resolved.config.out or "runs").resolve()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    return Disk(estimate(resolved).get("bytes on disk"), free, place)


def check_disk(resolved: Resolved) -> None:
    """An error where the disk has less room than the run is going to need."""
    disk = disk_of(resolved)
    if disk.needed is not None and disk.needed > disk.free:
        raise UserMistake(
            f"the run needs about {disk.needed / 1e9:.2f} GB on disk and {disk.place} has"
            f" {disk.free / 1e9:.2f} GB free: free some, choose another out, or fewer or smaller"
            " agents"
        )
