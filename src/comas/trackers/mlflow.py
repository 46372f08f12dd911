"""MLflow: where MLFLOW_TRACKING_URI says, otherwise its own file mlflow.db in the current folder;
in the experiment of MLFLOW_EXPERIMENT_NAME. The run is found again by a tag.

Leaves out: when a figure is sent (`trackers.sink`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from comas.trackers.sink import PROJECT, Sink, Tracked


class MLflow(Sink):
    TAG = "comas.id"
    ENTRIES = 100
    """That MLflow takes at once, of parameters; of metrics ten times as many."""
    VALUE = 500
    """Characters of a parameter that every store takes."""

    def __init__(self, run: Tracked) -> None:
        import mlflow
        from mlflow.entities import Param

        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self.client = mlflow.MlflowClient()
        experiment_id = experiment.experiment_id
        earlier_runs = self.client.search_runs([experiment_id], f"tags.`{self.TAG}` = '{run.id}'")
        stored = earlier_runs[0] if earlier_runs else None
        if stored is None:
            stored = self.client.create_run(
                experiment_id, tags={self.TAG: run.id}, run_name=run.name
            )
        if not stored.data.params:  # nor sent by a process that died before it did
            entries = run.config.items()
            params = [Param(_allowed(key), str(value)[: self.VALUE]) for key, value in entries]
            for start in range(0, len(params), self.ENTRIES):
                part = params[start : start + self.ENTRIES]
                self.client.log_batch(stored.info.run_id, params=part)
        self.run_id = stored.info.run_id
        self.client.update_run(self.run_id, status="RUNNING")

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), x, now, number) for name, x in figures.items()]
        for start in range(0, len(metrics), 10 * self.ENTRIES):
            part = metrics[start : start + 10 * self.ENTRIES]
            self.client.log_batch(self.run_id, metrics=part)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def _allowed(name: str) -> str:
    """A name without what MLflow does not allow in it, such as the @ of pass@1."""
    return re.sub(r"[^\w.\-/ ]", "_", name)


def open(run: Tracked) -> Sink:
    """Open MLflow for this run."""
    return MLflow(run)
