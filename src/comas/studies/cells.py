"""The cells of a study (a setting with a seed: a run and its evaluations in a folder of their own):
which are left, and running them, several at once.

`cell.toml` is a cell's config, `run` the run, `evals/<measure>` an evaluation, `trained.json` says
that the run has ended, `failed.json` why the last try did not. Each command is a process of its
own; what it comes to does not depend on how many run beside it. Leaves out: what was measured
(`studies.claims`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import tomli_w

from comas import estimate
from comas.evaluation.folder import PLAN, REPORT
from comas.exit_codes import ALARMED
from comas.machine import usable_cpus
from comas.questions.checked import of_run
from comas.signals import listening
from comas.storage import files
from comas.storage.out_folder import check_free
from comas.storage.records import without_none
from comas.studies.file import Measure, StudyFile, slug
from comas.studies.settings import Setting, taken_of
from comas.types import Stopped, UserMistake

PATIENCE = 60.0
"""Seconds to wait for a process of an earlier try that is still ending."""
TAIL = 20_000
"""Bytes of a log in which the reason of a failure is looked for."""


class Stage(NamedTuple):
    """One command of a cell."""

    name: str
    """`train`, or the evaluation's measure."""
    arguments: tuple[str, ...]
    folder: Path
    """Which it works on."""


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
        """What its commands wrote."""
        return self.folder / "log.txt"

    def evaluation(self, measure: str) -> Path:
        """The folder of an evaluation."""
        return self.folder / "evals" / slug(measure)

    @property
    def trained(self) -> bool:
        """Whether its run has ended."""
        return (self.folder / "trained.json").is_file()

    @property
    def failure(self) -> dict[str, Any] | None:
        """`stage` and `reason` of the last try, where that failed."""
        return files.read_object(self.folder / "failed.json")

    def stages(self) -> list[Stage]:
        """The commands that are left, in order."""
        left: list[Stage] = []
        if not self.trained:
            arguments = ("train", str(self.folder / "cell.toml"))
            if self._has_begun():
                arguments = ("resume", str(self.run))
            left.append(Stage("train", arguments, self.run))
        for name, measure in self.evaluations.items():
            if self.lacks(name):
                left.append(self._evaluating(name, measure))
        return left

    def _has_begun(self) -> bool:
        """Whether there is a run to go on with, damaged or not: it is never begun anew."""
        try:
            check_free(str(self.run))
        except UserMistake:
            return (self.run / "config.toml").is_file()
        return False

    def report(self, measure: str) -> dict[str, Any] | None:
        """What an evaluation came to; None where it has not ended, or is to be written again."""
        try:
            return files.read_object(self.evaluation(measure) / REPORT)
        except UserMistake:
            return None

    def lacks(self, measure: str) -> str:
        """Why the value of an evaluation is not known, so that it is gone on with: also where a
        machine failed some of its games; empty where it is known.
        """
        report = self.report(measure)
        if report is None or not report["cells"]:
            return f"{measure} is not measured"
        cell = report["cells"][0]
        if failed := cell.get("machine_failed"):
            games = cell["right"] + cell["wrong"] + cell["failed"]
            first = next((f["error"] for f in cell["failures"] if f["error"]), "not known")
            return f"{failed} of {games} games failed; the first: {_line(first)}"
        if cell["accuracy"] is None:
            return f"{measure}: nothing could be judged"
        return ""

    def _evaluating(self, name: str, measure: Measure) -> Stage:
        out = self.evaluation(name)
        if (out / PLAN).is_file():
            return Stage(name, ("resume", str(out)), out)
        arguments = ["eval", str(self.run), "--setups", str(measure.setup)]
        arguments += ["--limit", str(measure.games), "--seed", str(self.seed), "--out", str(out)]
        if measure.task is not None:
            arguments += ["--tasks", measure.task]
        if measure.data is not None:
            arguments += ["--data", measure.data]
        return Stage(name, tuple(arguments), out)

    def write_config(self) -> None:
        """Write the config of the run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.setting.config(self.seed, self.run)
        files.replace(self.folder / "cell.toml", tomli_w.dumps(without_none(config)))

    def write_failure(self, stage: str, reason: str) -> None:
        """Note why a try failed."""
        record = {"stage": stage, "reason": reason}
        files.replace(self.folder / "failed.json", files.as_json(record))


def cells_of(study: StudyFile, settings: Sequence[Setting], out: Path) -> list[Cell]:
    """All cells, seed by seed, so that what is there first can be compared."""
    found: list[Cell] = []
    for seed in study.seeds:
        for setting in settings:
            evaluations = {
                name: measure
                for name, measure in study.measures.items()
                if measure.setup is not None and setting in taken_of(measure, settings)
            }
            folder = out / "cells" / slug(setting.name) / str(seed)
            found.append(Cell(setting, seed, folder, evaluations))
    return found


# --- what is left


def check_left(cells: Sequence[Cell], file: Path) -> None:
    """An error for a setting that training would refuse, among those that have something left."""
    for setting in {cell.setting.name: cell.setting for cell in cells if cell.stages()}.values():
        resolved = setting.resolved
        try:
            of_run(resolved.config, resolved.task, note=lambda _: None)
            estimate.fitted(resolved, note=lambda _: None)
        except UserMistake as error:
            raise UserMistake(f"{file}: setting {setting.name}: {error}") from error


def jobs_for(cells: Sequence[Cell]) -> int:
    """Cells that the cores of this machine bear at once; at least one."""
    threads = max((c.setting.resolved.config.threads or usable_cpus() for c in cells), default=1)
    return max(1, min(len(cells), usable_cpus() // threads))


# --- running

Place = Callable[[Sequence[str], Path, int | None], Awaitable[int]]
"""`place(arguments, log, threads)` -> exit code: where commands run, as `here`."""


async def here(arguments: Sequence[str], log: Path, threads: int | None) -> int:
    """Run `comas` with these arguments in a process of this machine, which ends when this one does,
    in whatever way; its output is appended to `log`. Returns its exit code.

    Cancelled, it asks the process to end in order and waits for that; cancelled again, it kills it.
    """
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with log.open("ab") as output:
        # a process group of its own: Ctrl-C is for us, who ask it to stop
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "comas.cli.cell", *arguments),
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
    """What became of a cell."""

    cell: Cell
    seconds: float
    failure: str
    """Empty where it is done."""


async def run_cells(
    cells: Sequence[Cell], jobs: int, place: Place, tell: Callable[[Ended], None]
) -> None:
    """Run what is left of these cells, `jobs` at once; `tell` hears of each when it has ended.

    A cell that fails is recorded, and the others go on. Raises Stopped when Ctrl-C, SIGTERM or
    SIGHUP has stopped it and all processes have ended; another one ends these at once.
    """
    slots = asyncio.Semaphore(jobs)

    async def run(cell: Cell) -> None:
        async with slots:
            began = time.monotonic()
            try:
                failure = await _commands(cell, place)
            except (OSError, UserMistake) as error:
                failure = _line(str(error))
                cell.write_failure("train", failure)
            tell(Ended(cell, time.monotonic() - began, failure))

    tasks: list[asyncio.Task[None]] = []

    def stop() -> None:
        for task in tasks:
            task.cancel()

    with listening(lambda: False, stop):
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(run(cell)) for cell in cells]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    if any(task.cancelled() for task in tasks):
        raise Stopped


async def _commands(cell: Cell, place: Place) -> str:
    """Run all commands that a cell has left; returns the reason where one failed."""
    if not cell.trained:
        cell.write_config()
    (cell.folder / "failed.json").unlink(missing_ok=True)
    threads = cell.setting.resolved.config.threads
    for stage in cell.stages():
        await _left_alone(stage.folder)
        size = cell.log.stat().st_size if cell.log.is_file() else 0
        code = await place(stage.arguments, cell.log, threads)
        # a run that an alarm has ended is measured and done
        if code not in (0, ALARMED):
            reason = _reason(cell, size, code)
            cell.write_failure(stage.name, reason)
            return f"{stage.name}: {reason}"
        if stage.name == "train":
            files.replace(cell.folder / "trained.json", json.dumps({"run": cell.run.name}))
        elif reason := cell.lacks(stage.name):
            cell.write_failure(stage.name, reason)
            return f"{stage.name}: {reason}"
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
        except NotImplementedError:
            return


def _reason(cell: Cell, start: int, code: int) -> str:
    """The last line that says what was wrong, of what was written after the first `start` bytes."""
    with cell.log.open("rb") as log:
        log.seek(start)
        lines = log.read()[-TAIL:].decode("utf-8", "replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    mistakes = [line for line in said if line.startswith("error: ")]
    if mistakes:
        return _line(mistakes[-1].removeprefix("error: "))
    died = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return _line(f"{died}: {said[-1]}") if said else died


def _line(text: str) -> str:
    return " ".join(text.split())
