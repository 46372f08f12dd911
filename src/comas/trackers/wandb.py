"""Weights & Biases: the project of WANDB_PROJECT, or `comas`, with the key in WANDB_API_KEY; with
WANDB_MODE=offline, files in the run's own folder for `wandb sync`.

Leaves out: what of the machine and of the console it could record beside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from comas.trackers.sink import PROJECT, Sink, Tracked
from comas.trackers.wandb_files import last_step


def open(run: Tracked) -> Sink:
    """The run of this id."""
    return History(run)


class History(Sink):
    def __init__(self, run: Tracked) -> None:
        import wandb

        settings = wandb.Settings(
            console="off",
            quiet=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,  # the host's name, the user's, paths
            x_disable_machine_info=True,
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

    def flush(self) -> None:
        _ = self.run.step  # answered once what was logged before is written

    def close(self) -> None:
        self.run.finish()
