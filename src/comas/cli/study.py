"""`comas study`: settings x seeds from a file, claims that are fixed before the runs, a report.

Leaves out: everything but printing (`studies.verb`).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.output import Json, print_json, print_note
from comas.exit_codes import STOPPED
from comas.program import command

if TYPE_CHECKING:
    from comas.studies.cells import Cost, Ended
    from comas.studies.report import Report
    from comas.studies.verb import Study

FAILED = 1
"""The exit code where cells failed."""
File = Annotated[str, typer.Argument(help="STUDY.toml (see docs/study.md).")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once (default: what cores and memory bear)."),
]
Dry = Annotated[
    bool,
    typer.Option("--dry-run", help="Check the file; measure each base and engine; write nothing."),
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
    """Run a grid of settings and seeds, test the claims of its file, write tables and pictures;
    called again it goes on.
    """
    from comas.studies.verb import Study

    found = Study.read(file)
    if dry_run:
        found.declare(write=False)
        cost = _cost(found, jobs)
        cost.check(found.file)
        dry = _dry_runs(found)
        if json_:
            print_json(ctx, {**asdict(cost), "dry_runs": dry})
        return 0
    with found.alone():
        declared = found.declare()
        if not report and found.left():
            try:
                _run(found, jobs)
            except KeyboardInterrupt:
                found.report(declared)
                going_on = f"{command()} study {shlex.quote(file)}"
                print("stopped; go on with:", going_on, file=sys.stderr)
                sys.exit(STOPPED)
        made = found.report(declared)
    if json_:
        print_json(ctx, {**made.data(), "study": str(found.out)})
    else:
        _print(made, found)
    unfinished = 0 if report else made.count("missing")
    return FAILED if made.count("failed") or unfinished else 0


def _dry_runs(found: Study) -> dict[str, Any]:
    """Measure one setting of each base and engine, which is printed; its name -> what was found."""
    from comas.studies.cells import alike
    from comas.team.build import run_sync
    from comas.training.dry_run import dry_run

    measured: dict[str, Any] = {}
    for settings in alike(found.left()):
        first = settings[0]
        config = first.resolved.config.model_copy(update={"out": str(found.out)})
        dry = run_sync(dry_run(config, print_note))
        print(f"{first.name}, 1 of {len(settings)} settings with its base and engine:")
        for line in dry.lines():
            print(f"  {line}", flush=True)
        measured[first.name] = dry.data()
    return measured


def _cost(found: Study, jobs: int | None) -> Cost:
    """What it is and what is left of it, which is printed."""
    cost = found.cost(jobs)
    described = found.described
    settings = f"{len(found.settings)} settings x {len(described.seeds)} seeds"
    print(f"study:  {settings}, {len(described.claims)} claims, in {found.out}")
    for line in cost.lines():
        print(line, flush=True)
    return cost


def _run(found: Study, jobs: int | None) -> None:
    """Run what is left, with a line for each cell that has ended."""
    from comas.display import clean
    from comas.team.pace import spoken

    cost = _cost(found, jobs)
    cost.check(found.file)
    ended_cells: list[Ended] = []

    def tell(ended: Ended) -> None:
        ended_cells.append(ended)
        became = f"FAILED: {ended.failure}" if ended.failure else f"done in {spoken(ended.seconds)}"
        number = f"[{len(ended_cells)}/{cost.cells}]"
        print(number, clean(f"{ended.cell}: {became}", 1000), flush=True)

    found.run(cost.jobs, tell)


def _print(made: Report, found: Study) -> None:
    for number, verdict in enumerate(made.verdicts, 1):
        says = verdict.claim.says
        print(f"claim {number}: {verdict.verdict} ({says})")
    print("cells:", made.states())
    print("report:", found.out / "report.md")
