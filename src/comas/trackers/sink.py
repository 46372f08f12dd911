"""Trackers: the libraries that take figures, a class each, and the hook that feeds one: the steps
that it lacks when a run begins or goes on, then each step as it is written, and the accuracies
before and after. Alarms are not sent: what they rest on is among the figures.

A tracker of one's own is a file with `open(run) -> Sink`. The newest step that was sent is noted in
`track/<tracker>.json` of the run: what `comas resume` drops and plays again is not sent again.
Figures are called by their path in metrics.jsonl. Leaves out: texts, numbers that are null or not
finite, artifacts, and what libraries could record of the machine and of the console.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comas.hooks import Hook
from comas.storage import files
from comas.storage.records import flat, line
from comas.storage.run import Run
from comas.types import Episode

if TYPE_CHECKING:
    from comas.stats import Interval
    from comas.team.build import Team


PROJECT = "comas"
"""Where runs go, unless the tracker's own environment variable says otherwise."""


@dataclass(frozen=True)
class Tracked:
    """The run that a sink is opened for."""

    name: str
    """Name for people: that of its folder."""
    id: str
    """Made once for this run and tracker: by it a sink finds again what earlier processes sent."""
    config: Mapping[str, Any]
    """Dotted key -> value."""
    folder: Path
    """For files of the tracker; it exists."""
    sent: int
    """Steps that earlier processes sent, as it is noted beside the run."""


class Sink:
    """Takes figures; every method but `step` may be left as it is."""

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        """Send the figures of step `number`, counted from 1."""
        raise NotImplementedError

    def measured(self, number: int, figures: Mapping[str, float]) -> None:
        """Send an accuracy of the whole run, measured before its first step or after so many; by
        default as of a step.
        """
        self.step(number, figures)

    def close(self) -> None:
        """Send what is left: it is over, for this process."""


class Tracker(Hook):
    """One tracker's share of one run; it reports what fails in it, and is left alone then."""

    def __init__(self, name: str, open_sink: Callable[[Tracked], Sink]) -> None:
        self.name = name
        self.open_sink = open_sink
        self.sink = Sink()
        self.id = ""
        self.record = Path()
        """Where the id and `sent` are noted."""
        self.sent = 0
        """The newest step that the tracker has, counted from 1."""
        self.has_failed = False
        self.tell: Callable[[str], None] = lambda text: None
        """Called with a failure."""

    def begin(self, run: Run, team: Team | None, start: int) -> None:
        """Open the sink, and send what it lacks of what lies before step `start`."""

        def catch_up() -> None:
            folder = run.path / "track" / Path(self.name).name
            folder.mkdir(parents=True, exist_ok=True)
            self.record = folder.with_name(f"{folder.name}.json")
            note = files.read_object(self.record) or {"id": uuid.uuid4().hex, "sent": 0}
            self.id = note["id"]
            # versions before 0.2 noted a number for each kind of figure
            self.sent = note["sent"]["tokens"] if isinstance(note["sent"], dict) else note["sent"]
            self._write_note()  # before the store hears of the id
            name = run.path.resolve().name
            config = of_config(run.config())
            self.sink = self.open_sink(Tracked(name, self.id, config, folder, self.sent))
            for metrics in itertools.islice(run.metrics(), start):
                self._send(metrics)

        self._guard(catch_up)

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self._guard(lambda: self._send(json.loads(line(metrics))))

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        if name != "validation" and found is not None:  # which is a figure of its step
            figures = figures_of({name: found._asdict()})
            self._guard(lambda: self.sink.measured(step, figures))

    def ended(self, result: Any) -> None:
        self._guard(self.sink.close)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do what may fail: it ends this tracker's work in this process, and nothing else."""
        if self.has_failed:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what libraries say of themselves
                work()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is told in a line
            self.has_failed = True
            self.tell(
                f"track {Path(self.name).name} failed ({type(error).__name__}: {error}); the run"
                " goes on, and the next `comas resume` of it sends what is left"
            )

    def _send(self, metrics: Mapping[str, Any]) -> None:
        number = metrics["step"] + 1
        if number > self.sent:
            self.sink.step(number, figures_of(metrics))
            self.sent = number
            self._write_note()

    def _write_note(self) -> None:
        files.replace(self.record, json.dumps({"id": self.id, "sent": self.sent}))


# --- figures: a name with slashes -> a finite number


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a line of metrics.jsonl, or of a measurement."""
    return {"/".join(path): number for path, number in _numbers(record) if path != ("step",)}


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as one table with dotted keys; lists as texts."""
    values = {key: value for key, value in flat(config).items() if value != {}}
    return {key: str(value) if isinstance(value, list) else value for key, value in values.items()}


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every finite number of a record with its path; truth counts as 0 and 1. Rows of tables
    are named by their texts and their round, or by their place.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, (*path, str(key)))
    elif isinstance(value, list):
        for index, row in enumerate(value):
            if not isinstance(row, Mapping):
                yield from _numbers(row, (*path, str(index)))
                continue
            labels = [key for key, part in row.items() if isinstance(part, str) or key == "round"]
            names = [str(row[key]) for key in labels] or [str(index)]
            rest = {key: part for key, part in row.items() if key not in labels}
            yield from _numbers(rest, (*path, *names))
    elif isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        yield path, float(value)


# --- libraries


class TensorBoard(Sink):
    """Event files in the run's own folder; `tensorboard --logdir runs` finds them. Each process
    writes one of its own, and purges what was not noted as sent.
    """

    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder), purge_step=run.sent + 1)

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self.writer.add_scalar(name, figure, number)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Trackio(Sink):
    """A file of SQLite in its own folder (TRACKIO_DIR), or the Space or server that its environment
    variables name; the run is that of this name and id in the project of TRACKIO_PROJECT.
    """

    def __init__(self, run: Tracked) -> None:
        import trackio

        self.run = trackio.init(
            os.environ.get("TRACKIO_PROJECT", PROJECT),
            f"{run.name}-{run.id[:8]}",
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=number)

    def close(self) -> None:
        self.run.finish()


class Wandb(Sink):
    """Weights & Biases: the project of WANDB_PROJECT, with the key in WANDB_API_KEY; with
    WANDB_MODE=offline, files in the run's own folder for `wandb sync`.
    """

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


class MLflow(Sink):
    """Where MLFLOW_TRACKING_URI says, otherwise its own file mlflow.db in the current folder, in
    the experiment of MLFLOW_EXPERIMENT_NAME; the run is found again by a tag.
    """

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


SHIPPED: Mapping[str, Callable[[Tracked], Sink]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}
"""Name of a tracker, of its package and of the extra that brings it -> what opens it."""
