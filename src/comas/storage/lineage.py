"""Checkpoints of runs that others need: a run that started from one, an evaluation that asks one.

The run that owns them keeps them while they are held, however long it trains on. Leaves out: which
names mean checkpoints (`models.sources`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from comas.storage.run import Run

Checkpoint = tuple[Run, int]
"""A run, and after how many of its steps."""


def hold(checkpoints: Iterable[Checkpoint], holder: Path) -> Iterator[str]:
    """Have these checkpoints kept for `holder`; yields a note for each that cannot be."""
    for run, step in checkpoints:
        if not run.holds.add(step, holder):
            yield (
                f"{run.path} cannot be written: if it is trained on, its checkpoint of step {step},"
                f" which is needed to go on with {holder}, may be removed"
            )


def release(checkpoints: Iterable[Checkpoint], holder: Path) -> None:
    """The inverse of `hold`."""
    for run, step in checkpoints:
        run.holds.remove(step, holder)
