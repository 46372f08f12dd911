"""Weights & Biases: the project of WANDB_PROJECT, or `comas`, with the key in WANDB_API_KEY; with
WANDB_MODE=offline, files in the run's own folder for `wandb sync`.

Leaves out: what of the machine and of the console it could record beside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from comas.trackers.sink import PROJECT, Sink, Tracked
from comas.trackers.wandb_files import last_step

PRIVATE = {
    "host": ("WANDB_HOST", ""),
    "x_disable_meta": ("WANDB__DISABLE_META", True),
    "x_disable_machine_info": ("WANDB__DISABLE_MACHINE_INFO", True),
    "x_save_requirements": ("WANDB__SAVE_REQUIREMENTS", False),
}
"""Setting -> W&B's own variable for it, and what holds where that is not set: nothing is told of
the machine, whose it is, where things lie on it and what is installed.
"""


def open(run: Tracked) -> Sink:
    """The run of this id."""
    return History(run)


class History(Sink):
    def __init__(self, run: Tracked) -> None:
        import wandb

        settings = wandb.Settings(
            console="off", quiet=True, x_disable_stats=True, disable_git=True, **_private()
        )
        self.before = last_step(run.folder)  # in files of processes before this one
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            config=dict(run.config),
            dir=run.folder,
            resume="allow",
            settings=settings,
        )

    def last(self, figure: str) -> int | None:
        if figure != "tokens":  # which can be sent again
            return None
        return self.before if self.run.offline else self.run.step - 1

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=number, commit=True)

    def measured(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.summary.update(dict(figures))  # W&B takes nothing more of a step that is past

    def alarm(self, number: int, kind: str, text: str) -> None:
        self.run.alert(kind, f"step {number}: {text}", level="WARN")

    def flush(self) -> None:
        _ = self.run.step  # answered once what was logged before is written

    def close(self) -> None:
        self.run.finish()


def _private() -> dict[str, Any]:
    """The settings of PRIVATE that the environment leaves open."""
    return {key: value for key, (name, value) in PRIVATE.items() if name not in os.environ}
