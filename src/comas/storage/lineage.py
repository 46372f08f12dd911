"""Checkpoints of runs that others need: a run that started from one, an evaluation that asks one.

The run that owns them keeps them while they are held, however long it trains on. Leaves out:
reading them (`store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from comas.storage.run import Run, run_at


def hold(names: Iterable[str], holder: Path) -> Iterator[str]:
    """Have the checkpoints that names such as `runs/a@20` mean kept for `holder`; yields a note for
    each that cannot be.
    """
    for run, step in _checkpoints(names):
        if not run.hold(step, holder):
            yield (
                f"{run.path} cannot be written: if it is trained on, its checkpoint of step {step},"
                f" which is needed to go on with {holder}, may be removed"
            )


def release(names: Iterable[str], holder: Path) -> None:
    """The inverse of `hold`."""
    for run, step in _checkpoints(names):
        run.release(step, holder)


def _checkpoints(names: Iterable[str]) -> Iterator[tuple[Run, int]]:
    for name in names:
        if (found := run_at(name)) is not None and found[1] is not None:
            yield found[0], found[1]
