"""`comas study`: settings x seeds from a file, claims that are fixed before the runs, a report.

Leaves out: everything but printing (`studies.verb`).
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from comas.cli.output import Json, print_json, print_note
from comas.display import bars_of, clean, span
from comas.exit_codes import FAILED, STOPPED
from comas.program import command
from comas.stats import roughly
from comas.studies.cells import Cell, Ended, Watch
from comas.studies.verb import Study

POINTS = 8
"""Points of a curve of validation accuracy, at least."""
EVERY = 30.0
"""Seconds between two lines of a cell that runs."""
File = Annotated[str, typer.Argument(help="STUDY.toml (see docs/study.md).")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once (default: what cores bear)."),
]
Dry = Annotated[
    bool,
    typer.Option("--dry-run", help="Check the file, say what is left and its time; write nothing."),
]
Only = Annotated[bool, typer.Option("--report", help="Write the report of what is there.")]


def study(
    ctx: typer.Context,
    file: File,
    jobs: Jobs = None,
    dry_run: Dry = False,
    report: Only = False,
    json_: Json = False,
) -> int:
    """Run a grid of settings and seeds, and test claims.

    The file has the claims; tables are written. Called again it goes on.
    """
    grid = Study.read(file)
    if dry_run:
        grid.declare(write=False)
        left = _say_left(grid)
        grid.check_left(jobs, print_note)
        _say_forecast(grid, jobs)
        if json_:
            print_json(ctx, left)
        return 0
    with grid.alone():
        declared = grid.declare()
        if not report and grid.left():
            try:
                _run(grid, jobs)
            except KeyboardInterrupt:
                grid.report(declared)
                going_on = f"{command()} study {shlex.quote(file)}"
                print("stopped; go on with:", going_on, file=sys.stderr)
                sys.exit(STOPPED)
        outcome = grid.report(declared)
    if json_:
        print_json(ctx, {**outcome.data(), "study": str(grid.out)})
    else:
        for number, verdict in enumerate(outcome.verdicts, 1):
            print(f"claim {number}: {verdict.verdict} ({verdict.claim.says})")
        print("cells:", outcome.states())
        print("report:", grid.out / "report.md")
    unfinished = 0 if report else outcome.count("missing")
    return FAILED if outcome.count("failed") or unfinished else 0


def _say_left(grid: Study) -> dict[str, int]:
    """Print what it is and what is left of it, and return the numbers of that."""
    described = grid.described
    settings = f"{len(grid.settings)} settings x {len(described.seeds)} seeds"
    print(f"study:  {settings}, {len(described.claims)} claims, in {grid.out}")
    stages = [stage for cell in grid.left() for stage in cell.stages()]
    evaluations = sum(stage.name != "train" for stage in stages)
    left = {"cells": len(grid.left()), "evaluations": evaluations}
    print(f"left:   {left['cells']} cells, {evaluations} evaluations", flush=True)
    return left


def _run(grid: Study, jobs: int | None) -> None:
    """Run what is left, and show how far it has come."""
    left = _say_left(grid)
    grid.check_left(jobs, print_note)
    _say_forecast(grid, jobs)
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        with bars_of(console) as bars:
            grid.run(jobs, _Bars(console, left["cells"], grid.jobs(jobs), bars))
    else:
        grid.run(jobs, _Lines(console, left["cells"], grid.jobs(jobs)))


def _say_forecast(grid: Study, jobs: int | None) -> None:
    """Say how long the training takes that is left."""
    forecast = grid.forecast()
    if forecast is None:
        return
    at_once = grid.jobs(jobs)
    seconds = roughly(forecast.seconds(grid.cells, at_once))
    print(
        f"time:   about {seconds} of steps, {at_once} at once, as long as {forecast.measured}"
        " takes; measuring accuracy is not counted",
        flush=True,
    )
    every = max((cell.setting.plan.config.eval_every for cell in grid.left()), default=0)
    wanted = max(1, forecast.cell_steps // POINTS)
    if wanted < every:
        print_note(
            f"a run has about {forecast.cell_steps} steps, and eval_every is {every}: validations"
            f" between start and end: {forecast.cell_steps // every}; eval_every={wanted} in"
            " [config] gives more, and cannot be set once cells have run"
        )


class _Lines(Watch):
    """A line for each cell that has ended, and one every half minute for each that runs."""

    def __init__(self, console: Console, cells: int, jobs: int) -> None:
        self.console = console
        self.cells = cells
        self.jobs = jobs
        self.seconds: list[float] = []
        """Seconds of each cell that has ended."""
        self.last_line_at = time.monotonic()

    def ended(self, ended: Ended) -> None:
        self.seconds.append(ended.seconds)
        became = (
            f"FAILED: {ended.failure}" if ended.failure else f"done in {roughly(ended.seconds)}"
        )
        number = f"[{len(self.seconds)}/{self.cells}]"
        self._say(f"{number} {ended.cell}: {became}", self.left())

    def running(self, cells: Sequence[Cell]) -> None:
        if time.monotonic() - self.last_line_at < EVERY:
            return
        self.last_line_at = time.monotonic()
        for cell in cells:
            self._say(f"{cell}: {cell.latest()}")

    def left(self) -> str:
        """How long the other cells take, as long as those that have ended did."""
        others = self.cells - len(self.seconds)
        if not self.seconds or not others:
            return ""
        mean = math.fsum(self.seconds) / len(self.seconds)
        return f"about {span(mean * others / self.jobs)} left"

    def _say(self, *parts: str) -> None:
        line = "; ".join(filter(None, parts))
        self.console.print(Text(clean(line, 1000)), soft_wrap=True)


class _Bars(_Lines):
    """On a terminal: a line for each cell that has ended, and live ones for all and for each that
    runs.
    """

    def __init__(self, console: Console, cells: int, jobs: int, bars: Progress) -> None:
        super().__init__(console, cells, jobs)
        self.bars = bars
        self.all = bars.add_task("cells", total=cells, left="", details="")
        self.rows: dict[str, TaskID] = {}

    def running(self, cells: Sequence[Cell]) -> None:
        done = len(self.seconds)
        details = f"{done} of {self.cells}"
        self.bars.update(self.all, completed=done, left=self.left(), details=details)
        names = [str(cell) for cell in cells]
        for name in [name for name in self.rows if name not in names]:
            self.bars.remove_task(self.rows.pop(name))
        for name, cell in zip(names, cells, strict=True):
            if name not in self.rows:
                self.rows[name] = self.bars.add_task(
                    clean(name, 30), total=None, left="", details=""
                )
            self.bars.update(self.rows[name], details=clean(cell.latest()))
