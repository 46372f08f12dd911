"""Weights & Biases: the project of WANDB_PROJECT, with the key in WANDB_API_KEY; with
WANDB_MODE=offline, files in the run's own folder for `wandb sync`.

Leaves out: when a figure is sent (`trackers.sink`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from comas.trackers.sink import PROJECT, Sink, Tracked


class Wandb(Sink):
    FLUSH = 0.5
    """Seconds after which W&B has written what was logged: so much is lost to it where the process
    is killed and it is offline.
    """

    def __init__(self, run: Tracked) -> None:
        import wandb

        # nothing is told of the machine, whose it is, where things lie on it and what is installed
        settings = wandb.Settings(
            console="off",
            quiet=True,
            x_disable_stats=True,
            x_transaction_log_flush_interval=self.FLUSH,
            disable_git=True,
            host="",
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            config=dict(run.config),
            dir=run.folder,
            resume="allow",
            settings=settings,
        )

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=number, commit=True)

    def measured(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.summary.update(dict(figures))  # W&B takes nothing more of a step that is past

    def close(self) -> None:
        self.run.finish()


def open(run: Tracked) -> Sink:
    """Open W&B for this run."""
    return Wandb(run)
