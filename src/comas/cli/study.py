"""`comas study`: settings x seeds from a file, claims that are fixed before the runs, a report.

Leaves out: everything but printing (`studies.verb`).
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from comas.cli.output import Json, print_json, print_note
from comas.exit_codes import STOPPED
from comas.program import command

if TYPE_CHECKING:
    from comas.studies.cost import Cost
    from comas.studies.report import Report
    from comas.studies.running import Ended
    from comas.studies.verb import Study

FAILED = 1
"""The exit code where cells failed."""
File = Annotated[str, typer.Argument(help="STUDY.toml (see docs/study.md).")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once (default: what cores and memory bear)."),
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Check the file and estimate; run nothing.")]
Only = Annotated[bool, typer.Option("--report", help="Write the report of what is there.")]


def study(
    ctx: typer.Context,
    file: File,
    jobs: Jobs = None,
    dry_run: Dry = False,
    report: Only = False,
    json_: Json = False,
) -> int:
    """Run a grid of settings and seeds, test the claims of its file, write tables and pictures;
    called again it goes on.
    """
    from comas.studies.cost import cost_data
    from comas.studies.report import as_data
    from comas.studies.verb import Study

    found = Study.read(file)
    if dry_run:
        cost = _estimated(found, jobs)
        if json_:
            print_json(ctx, cost_data(cost))
        found.check(cost)
        return 0
    with found.alone():
        ledger = found.declare()
        if not report and found.left():
            try:
                _run(found, jobs)
            except KeyboardInterrupt:
                found.report(ledger)
                going_on = f"{command()} study {shlex.quote(file)}"
                print("stopped; go on with:", going_on, file=sys.stderr)
                sys.exit(STOPPED)
        made = found.report(ledger)
    if json_:
        record = as_data(made)
        record["study"] = str(found.out)
        print_json(ctx, record)
    else:
        _print(made, found)
    return FAILED if made.count("failed") else 0


def _estimated(found: Study, jobs: int | None) -> Cost:
    """What it is and what it costs, which is printed."""
    from comas.studies.cost import cost_lines

    cost = found.cost(jobs, print_note)
    described = found.described
    settings = f"{len(found.settings)} settings x {len(described.seeds)} seeds"
    print(f"study:  {settings}, {len(described.claims)} claims, in {found.out}")
    for line in cost_lines(cost):
        print(line, flush=True)
    return cost


def _run(found: Study, jobs: int | None) -> None:
    """Run what is left, with a line for each cell that has ended."""
    cost = _estimated(found, jobs)
    found.check(cost)
    ended_cells: list[Ended] = []

    def tell(ended: Ended) -> None:
        ended_cells.append(ended)
        number = len(ended_cells)
        print(f"[{number}/{cost.cells}]", _said(ended), flush=True)

    found.run(cost.jobs, tell)


def _said(ended: Ended) -> str:
    """What became of a cell, in a line that steers no terminal."""
    from comas.display import clean
    from comas.forecast.overview import spoken

    became = f"done in {spoken(ended.seconds)}"
    if ended.failure:
        became = f"FAILED: {ended.failure}"
    return clean(f"{ended.cell}: {became}", 1000)


def _print(made: Report, found: Study) -> None:
    for number, verdict in enumerate(made.verdicts, 1):
        says = verdict.claim.says
        print(f"claim {number}: {verdict.verdict} ({says})")
    states = ("done", "failed", "missing")
    counts = [f"{made.count(state)} {state}" for state in states]
    print("cells:", ", ".join(counts))
    print("report:", found.out / "report.md")
