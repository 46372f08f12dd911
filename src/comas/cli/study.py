"""`comas study`: settings x seeds from a file, claims that are fixed before the runs, a report.

Leaves out: everything but printing (`studies.verb`).
"""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from comas.cli.output import Json, print_json
from comas.display import clean
from comas.exit_codes import STOPPED
from comas.program import command
from comas.studies.cells import Ended
from comas.studies.verb import Study
from comas.training.dry_run import spoken

FAILED = 1
"""The exit code where cells failed."""
File = Annotated[str, typer.Argument(help="STUDY.toml (see docs/study.md).")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once (default: what cores bear)."),
]
Dry = Annotated[
    bool,
    typer.Option("--dry-run", help="Check the file and say what is left; write nothing."),
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
    """Run a grid of settings and seeds, test the claims of its file, write tables; called again it
    goes on.
    """
    grid = Study.read(file)
    if dry_run:
        grid.declare(write=False)
        left = _say_left(grid)
        grid.check_left()
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
    """Run what is left, with a line for each cell that has ended."""
    left = _say_left(grid)
    grid.check_left()
    ended_cells: list[Ended] = []

    def tell(ended: Ended) -> None:
        ended_cells.append(ended)
        became = f"FAILED: {ended.failure}" if ended.failure else f"done in {spoken(ended.seconds)}"
        number = f"[{len(ended_cells)}/{left['cells']}]"
        print(number, clean(f"{ended.cell}: {became}", 1000), flush=True)

    grid.run(jobs, tell)
