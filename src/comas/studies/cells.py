"""The cells of a study (a setting with a seed: a run and its evaluations in a folder of their own):
which are left, running them, several at once, and what was measured in each.

`cell.toml` is a cell's config, `run` the run, `evals/<measure>` an evaluation, `trained.json` says
that the run has ended, `failed.json` why the last try did not. Each command is a process of its
own; what it comes to does not depend on how many run beside it. What was measured is read from the
folder: nothing is computed anew, and nothing is guessed where it is missing. Leaves out: claims
(`studies.report`).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import filelock
import tomli_w

from comas.children import python_path
from comas.evaluation.accuracy import paired_gain
from comas.evaluation.runner import PLAN, REPORT
from comas.exit_codes import ALARMED
from comas.machine import usable_cpus
from comas.signals import listening
from comas.storage import files
from comas.storage.records import without_none
from comas.storage.run import Run
from comas.studies.file import LAST, Measure, Setting, StudyFile, slug, taken_of
from comas.training.result import Result, result_of
from comas.types import Stopped, UserMistake

PATIENCE = 60.0
"""Seconds to wait for a process of an earlier try that is still ending."""
EVERY = 0.25
"""Seconds between two looks at the cells that run."""
LATEST = 4_000
"""Bytes of a log in which its last line is looked for."""
TAIL = 20_000
"""Bytes of a log in which the reason of a failure is looked for."""


class Stage(NamedTuple):
    """One command of a cell."""

    name: str
    """`train`, or the evaluation's measure."""
    arguments: tuple[str, ...]
    folder: Path
    """Folder that it works on."""


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    setting: Setting
    seed: int
    folder: Path
    evaluations: dict[str, Measure]

    def __str__(self) -> str:
        return f"{self.setting.name}, seed {self.seed}"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        """File with the output of its commands."""
        return self.folder / "log.txt"

    def evaluation(self, measure: str) -> Path:
        """The folder of an evaluation."""
        return self.folder / "evals" / slug(measure)

    @property
    def trained(self) -> bool:
        """Whether its run has ended."""
        return (self.folder / "trained.json").is_file()

    def has_steps(self) -> bool:
        """Whether its run has a step behind it."""
        metrics = self.run / "metrics.jsonl"
        return metrics.is_file() and metrics.stat().st_size > 0

    @property
    def failure(self) -> dict[str, Any] | None:
        """`stage` and `reason` of the last try, where that failed."""
        return files.read_object(self.folder / "failed.json")

    def stages(self) -> list[Stage]:
        """The commands that are left, in order."""
        left: list[Stage] = []
        if not self.trained:
            arguments = ("train", str(self.folder / "cell.toml"))
            if (self.run / "config.toml").is_file():  # damaged or not, it is never begun anew
                arguments = ("resume", str(self.run))
            left.append(Stage("train", arguments, self.run))
        for name, measure in self.evaluations.items():
            if isinstance(self.value(name), float):
                continue
            out = self.evaluation(name)
            if (out / PLAN).is_file():
                left.append(Stage(name, ("resume", str(out)), out))
                continue
            words = ["eval", str(self.run), "--setups", str(measure.setup)]
            words += ["--limit", str(measure.games), "--seed", str(self.seed), "--out", str(out)]
            words += [] if measure.task is None else ["--tasks", measure.task]
            words += [] if measure.data is None else ["--data", measure.data]
            left.append(Stage(name, tuple(words), out))
        return left

    def value(self, measure: str) -> float | str:
        """The accuracy of an evaluation; or why it is not known, so that it is gone on with: also
        where a machine failed some of its games.
        """
        try:
            report = files.read_object(self.evaluation(measure) / REPORT)
        except UserMistake:  # it is written again
            report = None
        if report is None or not report["cells"]:
            return f"{measure} is not measured"
        cell = report["cells"][0]
        if failed := cell.get("machine_failed"):
            games = cell["right"] + cell["wrong"] + cell["failed"]
            first = next((f["error"] for f in cell["failures"] if f["error"]), "not known")
            return f"{failed} of {games} games failed; the first: {_line(first)}"
        if cell["accuracy"] is None:
            return f"{measure}: nothing could be judged"
        return float(cell["accuracy"])

    def latest(self) -> str:
        """Read the last line that its commands have written, but for what they say of a run that is
        over; empty where they have written nothing.
        """
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - LATEST))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return ""
        over = ("next: ", "run:  ")
        return next((x for x in reversed(lines) if x.strip() and not x.startswith(over)), "")

    def fail(self, stage: str, reason: str) -> str:
        """Note why a try failed, and return it in words."""
        record = {"stage": stage, "reason": reason}
        files.replace(self.folder / "failed.json", files.as_json(record))
        return f"{stage}: {reason}"


def cells_of(study: StudyFile, settings: Sequence[Setting], out: Path) -> list[Cell]:
    """All cells, seed by seed, so that what is there first can be compared."""
    cells: list[Cell] = []
    for seed in study.seeds:
        for setting in settings:
            evaluations = {
                name: measure
                for name, measure in study.measures.items()
                if measure.setup is not None and setting in taken_of(measure, settings)
            }
            folder = out / "cells" / slug(setting.name) / str(seed)
            cells.append(Cell(setting, seed, folder, evaluations))
    return cells


# --- running


def jobs_for(cells: Sequence[Cell]) -> int:
    """Cells that the cores of this machine bear at once; at least one."""
    threads = max((c.setting.plan.config.threads or usable_cpus() for c in cells), default=1)
    return max(1, min(len(cells), usable_cpus() // threads))


Place = Callable[[Sequence[str], Path, int | None], Awaitable[int]]
"""`place(arguments, log, threads)` -> exit code: where commands run, as `here`."""


async def here(arguments: Sequence[str], log: Path, threads: int | None) -> int:
    """Run `comas` with these arguments in a process of this machine, which ends when this one does,
    in whatever way; its output is appended to `log`. Returns its exit code.

    Cancelled, it asks the process to end in order and waits for that; cancelled again, it kills it.
    """
    environment = {**os.environ, "PYTHONPATH": python_path()}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with log.open("ab") as output:
        # a process group of its own: Ctrl-C is for us, who ask it to stop
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "comas.cli.entry", *arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise
    finally:
        if process.returncode is None:
            process.kill()
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Ended(NamedTuple):
    """Outcome of a cell."""

    cell: Cell
    seconds: float
    failure: str
    """Empty where it is done."""


class Watch:
    """Called for the cells of a study; every method may be overridden."""

    def ended(self, ended: Ended) -> None:
        """A cell has ended."""

    def running(self, cells: Sequence[Cell]) -> None:
        """These run now: called four times a second."""


async def run_cells(cells: Sequence[Cell], jobs: int, place: Place, watch: Watch) -> None:
    """Run what is left of these cells, `jobs` at once.

    A cell that fails is recorded, and the others go on. Raises Stopped when Ctrl-C, SIGTERM or
    SIGHUP has stopped it and all processes have ended; another one ends these at once.
    """
    slots = asyncio.Semaphore(jobs)
    running: list[Cell] = []

    async def run(cell: Cell) -> None:
        async with slots:
            began = time.monotonic()
            running.append(cell)
            try:
                failure = await _commands(cell, place)
            except (OSError, UserMistake) as error:
                failure = _line(str(error))
                cell.fail("train", failure)
            finally:
                running.remove(cell)
            watch.ended(Ended(cell, time.monotonic() - began, failure))

    async def look() -> None:
        while True:
            await asyncio.sleep(EVERY)
            watch.running(tuple(running))

    tasks: list[asyncio.Task[None]] = []

    def stop() -> None:
        for task in tasks:
            task.cancel()

    with listening(lambda: False, stop):
        looking = asyncio.create_task(look())
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(run(cell)) for cell in cells]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            looking.cancel()
    if any(task.cancelled() for task in tasks):
        raise Stopped


async def _commands(cell: Cell, place: Place) -> str:
    """Run all commands that a cell has left; returns the reason where one failed."""
    if not cell.trained:
        cell.folder.mkdir(parents=True, exist_ok=True)
        config = {**cell.setting.keys, "seed": cell.seed, "out": str(cell.run)}
        files.replace(cell.folder / "cell.toml", tomli_w.dumps(without_none(config)))
    (cell.folder / "failed.json").unlink(missing_ok=True)
    threads = cell.setting.plan.config.threads
    for stage in cell.stages():
        await _left_alone(stage.folder)
        size = cell.log.stat().st_size if cell.log.is_file() else 0
        code = await place(stage.arguments, cell.log, threads)
        # a run that an alarm has ended is measured and done
        if code not in (0, ALARMED):
            return cell.fail(stage.name, _reason(cell, size, code))
        if stage.name == "train":
            files.replace(cell.folder / "trained.json", json.dumps({"run": cell.run.name}))
        elif isinstance(reason := cell.value(stage.name), str):
            return cell.fail(stage.name, reason)
    return ""


async def _left_alone(folder: Path) -> None:
    """Wait until no process of an earlier try works in a folder any more; where one stays, the
    command itself says so.
    """
    until = time.monotonic() + PATIENCE
    while folder.is_dir() and time.monotonic() < until:
        try:
            with filelock.FileLock(folder / ".lock", timeout=0):
                return
        except filelock.Timeout:
            await asyncio.sleep(0.1)
        except (OSError, NotImplementedError) as error:
            if not files.tells_no_locks(error):
                raise
            return


def _reason(cell: Cell, start: int, code: int) -> str:
    """The last line that says what was wrong, of what was written after the first `start` bytes."""
    with cell.log.open("rb") as log:
        log.seek(start)
        lines = log.read()[-TAIL:].decode("utf-8", "replace").splitlines()
    printed = [line.strip() for line in lines if line.strip()]
    mistakes = [line for line in printed if line.startswith("error: ")]
    if mistakes:
        return _line(mistakes[-1].removeprefix("error: "))
    died = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return _line(f"{died}: {printed[-1]}") if printed else died


def _line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Forecast:
    """How long training takes, if all cells take as long as those that were measured."""

    measured: str
    """Runs that were measured, in words."""
    cell_seconds: float
    """Time of the steps of one run."""
    cell_steps: int

    def seconds(self, cells: Sequence[Cell], jobs: int) -> float:
        """Seconds of the steps of those of these cells that are not trained, so many at once."""
        return self.cell_seconds * sum(map(_has_steps_left, cells)) / jobs


def _has_steps_left(cell: Cell) -> bool:
    return cell.setting.trained and not cell.trained


async def forecast(cells: Sequence[Cell], place: Place) -> Forecast | None:
    """Measure how long a run takes: by those that have run, otherwise by a dry run of the first;
    None where none has steps left, or where the dry run fails, as the run will then say.
    """
    left = [cell for cell in cells if _has_steps_left(cell)]
    if not left:
        return None
    done = [cell for cell in cells if cell.setting.trained and cell.trained]
    results = [result for cell in done if (result := _readable_result(cell)) is not None]
    if results:
        seconds = [result.step_seconds for result in results]
        steps = min(result.steps for result in results)
        count = len(results)
        runs = "the run that is done" if count == 1 else f"the {count} runs that are done"
        return Forecast(runs, math.fsum(seconds) / len(seconds), steps)
    first = left[0]
    config = first.setting.plan.config
    with TemporaryDirectory() as folder:
        file, log = Path(folder) / "cell.toml", Path(folder) / "log.txt"
        table = {**first.setting.keys, "seed": first.seed}
        file.write_text(tomli_w.dumps(without_none(table)), encoding="utf-8")
        if await place(("train", str(file), "--dry-run", "--json"), log, config.threads):
            return None
        measured = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    steps = config.steps
    if config.tokens is not None:
        steps = min(steps, math.ceil(config.tokens / max(1.0, measured["step_tokens"])))
    step = math.fsum(measured["seconds"].values())
    return Forecast(f"a dry run of {first.setting.name}", steps * step, steps)


def _readable_result(cell: Cell) -> Result | None:
    """Return what a trained cell came to; None where its folder is damaged, as its row will say."""
    try:
        return result_of(Run.open(cell.run))
    except DAMAGED:
        return None


# --- what was measured

DAMAGED = (UserMistake, OSError, ValueError, KeyError, TypeError)
"""Errors of reading a damaged run."""

Status = Literal["done", "failed", "missing"]
Curve = list[tuple[float, float]]
"""Generated tokens, and a figure there."""
Steps = Sequence[Mapping[str, Any]]
"""Lines of metrics.jsonl."""


@dataclass(frozen=True)
class CellResult:
    """Result of a cell, as far as it is known."""

    setting: str
    seed: int
    run: str
    """Folder of the run, from that of the study."""
    status: Status
    reason: str = ""
    """Why it is not done."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Measure -> its value, of those that could be taken."""
    curve: Curve = field(default_factory=list)
    """Validation accuracy."""
    versions: tuple[str, ...] = ()
    """Versions of comas that ran it, with their commits."""

    @property
    def accuracy(self) -> float | None:
        """Held-out, after training."""
        return self.values.get("accuracy")


def rows_of(study: StudyFile, cells: Sequence[Cell]) -> list[CellResult]:
    """A row for each cell in the order of settings, whether it has run or not."""
    names = [cell.setting.name for cell in cells]
    cells = sorted(cells, key=lambda cell: names.index(cell.setting.name))
    rows = [_row(study, cell) for cell in cells]
    for name, measure in study.measures.items():
        if measure.metric is None or any(name in row.values for row in rows):
            continue
        pairs = zip(cells, rows, strict=True)
        done = [c for c, row in pairs if row.status == "done" and taken_of(measure, [c.setting])]
        steps = [step for cell in done for step in Run.open(cell.run).metrics()]
        if not steps or any(_found(step, measure.metric) for step in steps):
            continue
        tables = [t for step in steps for t in _found(step, measure.metric.rpartition(".")[0])]
        keys = sorted({key for table in tables if isinstance(table, Mapping) for key in table})
        hint = f"there are {', '.join(keys)}" if keys else "nothing is there"
        reason = f"{name} is not measured: no step has {measure.metric}: {hint}"
        rows = [
            replace(row, status="missing", reason=reason) if cell in done else row
            for cell, row in zip(cells, rows, strict=True)
        ]
    return rows


def _row(study: StudyFile, cell: Cell) -> CellResult:
    run_path = cell.run.relative_to(cell.folder.parents[2]).as_posix()
    names = (cell.setting.name, cell.seed, run_path)
    failure = cell.failure
    reason = f"{failure['stage']}: {failure['reason']}" if failure else ""
    status: Status = "failed" if failure else "missing"
    if not cell.trained:
        half = "not finished" if cell.run.is_dir() else "not run yet"
        return CellResult(*names, status, reason or half)
    try:
        run = Run.open(cell.run)
        steps = list(run.metrics())
        versions = tuple(run.versions())
        values = _own_values(run, steps)
        curve = [(s["tokens"], s["validation"]["mean"]) for s in steps if s.get("validation")]
        for name, measure in study.measures.items():
            if (path := measure.metric) is None:
                continue
            chosen = steps[: measure.first] if measure.first else steps[-(measure.last or LAST) :]
            figures = [figure_at(step, path) for step in chosen]
            if taken := [figure for figure in figures if figure is not None]:
                values[name] = math.fsum(taken) / len(taken)
    except DAMAGED as error:
        return CellResult(*names, "failed", f"damaged: {error}")
    missing: list[str] = []
    for name in cell.evaluations:
        value = cell.value(name)
        if isinstance(value, str):
            missing.append(value)
        else:
            values[name] = value
    if not missing:  # what failed once may be done since
        status = "done"
        reason = ""
    elif not failure:
        reason = missing[0]
    return CellResult(*names, status, reason, values, curve, versions)


def _own_values(run: Run, steps: Steps) -> dict[str, float]:
    """The measures that every run has, and those of its agents: `gain.a0`."""
    result = result_of(run)
    values: dict[str, float] = {"steps": result.steps, "tokens": result.tokens}
    for measure, occasion in (("before", "before"), ("accuracy", "after")):
        interval = result.accuracy[occasion]
        if interval is None:
            continue
        values[measure] = interval.mean
        shares = result.agents[occasion]
        values |= {f"{measure}.{agent}": share for agent, share in shares.items()}
        if occasion == "after":
            values["lowest"] = min(shares.values())
    if result.gain is not None:  # of questions that were judged both times
        values["gain"] = result.gain.mean
        before, after = ((run.read_eval(name) or {})["answers"] for name in ("before", "after"))
        for agent in result.agents["before"].keys() & result.agents["after"].keys():
            own = [answer for answer in after if answer["agent"] == agent]
            if (gain := paired_gain(before, own)) is not None:
                values[f"gain.{agent}"] = gain.mean
    values["seconds"] = result.step_seconds
    validated = [step["validation"]["mean"] for step in steps if step.get("validation")]
    if validated:
        values["best"] = max(validated)
    return values


def figure_at(step: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path of a step's metrics; None where there is none.

    In a list of rows, such as `cost`, a part names an agent or a role, and figures are added up:
    `cost.scoring.tokens`.
    """
    value = _found(step, path)
    numbers = [n for n in value if type(n) in (int, float) and math.isfinite(n)]
    return float(math.fsum(numbers)) if numbers else None


def has_figure(cell: Cell, path: str) -> bool:
    """Whether a step of the cell's run has a number at this dotted path."""
    if not cell.has_steps():
        return False
    return any(figure_at(step, path) is not None for step in Run.open(cell.run).metrics())


def _found(step: Mapping[str, Any], path: str) -> list[Any]:
    """Find what stands at a dotted path; the step itself where there is none."""
    places: list[Any] = [step]
    for part in path.split(".") if path else ():
        below: list[Any] = []
        for place in places:
            if isinstance(place, Mapping) and part in place:
                below.append(place[part])
            elif isinstance(place, list):
                rows = [row for row in place if isinstance(row, Mapping)]
                below += [row for row in rows if part in (row.get("role"), row.get("agent"))]
        places = below
    return places
