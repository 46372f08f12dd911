"""`comas eval`: assemble an evaluation, watch it, show what it came to.

Leaves out: statistics (`evaluation.report`), playing (`evaluation.runner`).
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from comas.cli.output import Json, print_json, print_stopped, split
from comas.display import clean, watcher
from comas.evaluation.runner import REPORT, SPENT, EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.exit_codes import STOPPED
from comas.program import command
from comas.stats import spelt
from comas.storage import files
from comas.storage.run import accounts_in
from comas.sync import run_sync
from comas.team import spending
from comas.types import UserMistake
from comas.verbs import planned

Tasks = Annotated[
    str | None,
    typer.Option(help="Divided by commas: gsm8k,math500 ... (default: that of the first run)."),
]
Setups = Annotated[
    str,
    typer.Option(
        help=(
            "Divided by commas: single,vote,debate,autogen,refine,steps, vote:votes=16, a method,"
            " game; cross: every run against every other."
        )
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=0, help="Questions per task, where it has more; 0 is all.", show_default="500"
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the choice of questions and of all draws.")]
Data = Annotated[
    str | None,
    typer.Option(help="A file or folder of questions, instead of the hub or COMAS_DATA."),
]
Out = Annotated[str | None, typer.Option(help="The folder; default evals/<time>.")]


def evaluate(
    ctx: typer.Context,
    systems: Annotated[
        list[str],
        typer.Argument(
            help=(
                "Runs (RUN, RUN@best, RUN@40; run1,run2 is one system), models, TEAM.toml,"
                " key=value."
            )
        ),
    ],
    tasks: Tasks = None,
    setups: Setups = "single",
    limit: Limit = None,
    seed: Seed = 0,
    data: Data = None,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Measure runs and models on held-out questions.

    Each is compared with the first, and told with its interval and its cost.
    """
    go_on(ctx, EvaluationRun.create(_plan(systems, tasks, setups, limit, seed, data), out), json_)


def _spelt(figures: Mapping[str, Any], key: str, form: str = ".3f") -> str:
    return spelt(figures[key], figures["low"], figures["high"], form)


def _family(table: Sequence[Any]) -> str:
    return f", corrected for {len(table)} comparisons" if len(table) > 1 else ""


def _plan(
    systems: Sequence[str],
    tasks: str | None,
    setups: str,
    limit: int | None,
    seed: int,
    data: str | None,
) -> EvaluationPlan:
    names, settings = split(systems)
    return planned(names, tasks or "", setups, limit, seed, settings, data)


def go_on(
    ctx: typer.Context, evaluation: EvaluationRun, as_json: bool, changes: Sequence[str] = ()
) -> None:
    """Play what is missing of an evaluation, and show it; `changes` are what it goes on with."""
    _show(ctx, _watched(evaluation, as_json, changes), as_json)


def show_again(ctx: typer.Context, folder: Path, as_json: bool) -> None:
    """Show what an evaluation came to when it ended last; before that, what it has cost."""
    try:
        report = files.read_object(folder / REPORT)
    except UserMistake as error:
        remedy = f"`{command()} resume {shlex.quote(str(folder))}` writes it anew"
        raise UserMistake(f"{error}; {remedy}") from error
    if report is not None:
        _show(ctx, report, as_json)
        return
    accounts = accounts_in(folder / SPENT, by_system=True)
    report = {"folder": str(folder), "api": spending.records(accounts)}
    if as_json:
        print_json(ctx, report)
        return
    print(f"{folder} has not ended yet: {command()} resume {shlex.quote(str(folder))}")
    _print_notes(report)


def _watched(evaluation: EvaluationRun, as_json: bool, changes: Sequence[str]) -> dict[str, Any]:
    try:
        with watcher(as_json) as observer:
            return run_sync(evaluation.go(observer))
    except KeyboardInterrupt:
        print_stopped(evaluation.folder, changes)
        sys.exit(STOPPED)


def _show(ctx: typer.Context, report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(ctx, report)
        return
    rows: list[Sequence[str]] = []
    for cell in report["cells"]:
        accuracy = "nothing judged"
        if cell["accuracy"] is not None:
            accuracy = _spelt(cell, "accuracy")
        tokens = cell["tokens"] / max(1, cell["right"] + cell["wrong"] + cell["failed"])
        names = [cell["label"], cell["task"], f"{cell['setup']}: {cell['team']}"]
        rows.append([*names, f"{cell['n']:,}", accuracy, f"{tokens:,.0f}"])
    if rows:
        asked = report.get("asked", {})
        at = [f"{key} {value:g}" for key, value in asked.items() if (key, value) != ("top_p", 1)]
        headings = ("system", "task", "setup: by whom", "n", "accuracy, 95 %", "tokens each")
        print_table(", ".join(["held-out answers", *at]), headings, rows, unfolded=headings[3:])
    for part in ("system", "setup"):
        differences = report[f"{part}s"]
        tests = dict.fromkeys(d["test"].partition(",")[0] for d in differences)
        title = f"against the first {part} ({', '.join(tests)}{_family(differences)})"
        rows = [
            (d["task"], _sides(d), _spelt(d, "difference", "+.3f"), _p(d["p"]), d["verdict"])
            for d in differences
        ]
        if rows:
            headings = ("task", "compared", "difference, 95 %", "p", "verdict")
            print_table(title, headings, rows, unfolded=headings[2:])
    rows = [
        (team["label"], team["task"], team["setup"], figure, _spelt(one, "mean"))
        for team in report.get("teamwork", [])
        for figure, one in team["figures"].items()
    ]
    if rows:
        headings = ("system", "task", "setup", "figure", "value, 95 %")
        print_table("teams against their members", headings, rows, unfolded=headings[3:])
    for matrix in report.get("cross", []):
        print_cross(matrix)
    print()
    _print_notes(report)
    print(f"all of it: {Path(report['folder']) / REPORT}")


def _sides(d: Mapping[str, Any]) -> str:
    """Say what is subtracted from what, and what both have in common."""
    first, second = d["first"], d["second"]
    if first["setup"] == second["setup"]:
        return f"{first['setup']}: {second['label']} minus {first['label']}"
    if first["label"] == second["label"]:
        return f"{first['label']}: {second['setup']} minus {first['setup']}"
    return f"{second['label']} {second['setup']} minus {first['label']} {first['setup']}"


def _print_notes(report: Mapping[str, Any]) -> None:
    """Print what hosts behind an API have cost, and what a reader has to know."""
    for account in report.get("api", []):
        for line in spending.cost_lines({account["host"]: account}):
            print(clean(f"{account['system']}: {line}", 1000))
    for note in report.get("notes", []):
        print(f"note: {clean(note, 1000)}")


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "< .0001"


def print_cross(matrix: Mapping[str, Any]) -> None:
    """Print what each row came to against each column, with the intervals of both margins."""
    labels = [f"{number} {name}" for number, name in enumerate(matrix["names"], 1)]
    numbers = [str(index + 1) for index in range(len(labels))]
    rows: list[list[str]] = []
    for label, cells, mean in zip(labels, matrix["matrix"], matrix["rows"], strict=True):
        figures = [f"{cell['mean']:+.3f}" for cell in cells]
        rows.append([label, *figures, _spanned(mean)])
    means = [f"{mean['mean']:+.3f}" for mean in matrix["columns"]]
    rows.append(["all", *means, _spanned(matrix["mean"])])
    title = f"cross-play on {matrix['task']}: payoff of the row, {matrix['n']} games a cell"
    names = ("row against column", *numbers, "all, 95 %")
    print_table(title, names, rows, unfolded=names[1:])
    progress = matrix["progress"]
    first = f"against {labels[0]}"
    print(f" the last row minus the first, {first}: {_spanned(progress['rows'])}")
    print(f" the first column minus the last, {first}: {_spanned(progress['columns'])}")


def _spanned(figures: Mapping[str, Any]) -> str:
    if figures["low"] is None and figures["high"] is None:  # no spread: nothing is known of it
        return f"{figures['mean']:+.3f}"
    return _spelt(figures, "mean", "+.3f")


def print_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], unfolded: Sequence[str]
) -> None:
    """Within the terminal's width, elsewhere within 80 columns: names are folded where they do not
    fit, columns `unfolded` never.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        table.add_column(name, no_wrap=name in unfolded, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    terminal = Console()
    plain = Console(file=io.StringIO(), width=terminal.width if terminal.is_terminal else 80)
    with plain.capture() as drawn:
        plain.print(table)
    print(f"\n{title}")
    for line in drawn.get().splitlines():
        print(line.rstrip())
