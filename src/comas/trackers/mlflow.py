"""MLflow: where MLFLOW_TRACKING_URI says, otherwise its own file mlflow.db in the current folder.

The run is found again by a tag. Leaves out: artifacts.
"""

# where the package is not installed, pyright takes this file for it
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from comas.trackers.sink import PROJECT, Sink, Tracked

TAG = "comas.id"
ENTRIES = 100
"""That MLflow takes at once, of parameters; of metrics ten times as many."""
VALUE = 500
"""Characters of a parameter that every store takes."""


def open(run: Tracked) -> Sink:
    """Return the run of this id in the experiment of MLFLOW_EXPERIMENT_NAME, or `comas`."""
    import mlflow
    from mlflow.entities import Param

    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    client = mlflow.MlflowClient()
    known = client.search_runs([experiment.experiment_id], f"tags.`{TAG}` = '{run.id}'")
    if known:
        stored = known[0]
    else:
        stored = client.create_run(experiment.experiment_id, tags={TAG: run.id}, run_name=run.name)
        params = [Param(_allowed(key), str(value)[:VALUE]) for key, value in run.config.items()]
        for start in range(0, len(params), ENTRIES):
            client.log_batch(stored.info.run_id, params=params[start : start + ENTRIES])
    client.update_run(stored.info.run_id, status="RUNNING")
    return Metrics(client, stored.info.run_id)


class Metrics(Sink):
    def __init__(self, client: Any, run_id: str) -> None:
        self.client = client
        self.run_id = run_id

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), x, now, number) for name, x in figures.items()]
        for start in range(0, len(metrics), 10 * ENTRIES):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + 10 * ENTRIES])

    def alarm(self, number: int, kind: str, text: str) -> None:
        told = f"step {number}: {text}"[:VALUE]
        self.client.set_tag(self.run_id, _allowed(f"alarm.{kind}"), told)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def _allowed(name: str) -> str:
    """A name without what MLflow does not allow in it, such as the @ of pass@1."""
    return re.sub(r"[^\w.\-/ ]", "_", name)
