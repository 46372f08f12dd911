"""`comas eval` and `comas compare`: assemble an evaluation, watch it, show what it came to.

Leaves out: statistics (`evaluation.report`), playing (`evaluation.runner`).
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.json_output import Json, print_json
from comas.program import command

if TYPE_CHECKING:
    from rich.console import Console

    from comas.evaluation.runner import Exam, Plan

Tasks = Annotated[
    str | None,
    typer.Option(help="Divided by commas: gsm8k,math500 ... (default: the first system's own)."),
]
Setups = Annotated[
    str,
    typer.Option(
        help="Divided by commas: single,vote,debate,autogen, vote:votes=16, a method, game."
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
Equal = Annotated[
    bool,
    typer.Option(
        "--equal-tokens", help="Let the cheaper side of a comparison vote at the other's tokens."
    ),
]


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
    equal_tokens: Equal = False,
    json_: Json = False,
) -> None:
    """How good runs and models are on held-out questions, with what certainty, at what cost; each
    against the first.
    """
    from comas.evaluation.runner import Exam

    sit(
        ctx, Exam.create(_plan(systems, tasks, setups, limit, seed, data, equal_tokens), out), json_
    )


def compare(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(help="A run, a base model or TEAM.toml.")],
    second: Annotated[str, typer.Argument(help="Another one: is it better?")],
    pairs: Annotated[
        list[str] | None, typer.Argument(help="key=value of the config, for both.")
    ] = None,
    tasks: Tasks = None,
    setups: Setups = "single",
    limit: Limit = None,
    seed: Seed = 0,
    data: Data = None,
    out: Out = None,
    equal_tokens: Equal = False,
    json_: Json = False,
) -> None:
    """Whether the second of two systems is better than the first, on the same
    held-out questions.
    """
    from comas.evaluation.runner import Exam
    from comas.types import UserMistake

    plan = _plan([first, second, *(pairs or [])], tasks, setups, limit, seed, data, equal_tokens)
    if len(plan.systems) != 2:
        raise UserMistake(
            f"compare takes two systems, not {len(plan.systems)}; behind them stand pairs of the"
            " form key=value"
        )
    exam = Exam.create(plan, out)
    found = _watched(exam, json_)
    if not found["systems"]:
        raise UserMistake(
            f"{first} and {second}: fewer than two questions were judged for both; nothing can be"
            " said"
        )
    if json_:
        print_json(ctx, {**found, "cells": found["systems"]})
        return
    for d in found["systems"]:
        span = _span(d["difference"], d["low"], d["high"], "+")
        print(f"{second} minus {first}, {d['task']}, {d['setup']}: {span} over {d['n']} questions")
        print(f"  p {_p(d['p'], '= ')} ({d['test']}{_family(found['systems'])}): {d['verdict']}")
    _print_notes(found)


def _family(table: Sequence[Any]) -> str:
    return f", corrected for {len(table)} comparisons" if len(table) > 1 else ""


def _plan(
    systems: Sequence[str],
    tasks: str | None,
    setups: str,
    limit: int | None,
    seed: int,
    data: str | None,
    equal: bool,
) -> Plan:
    from comas.config.plugins import load_plugin
    from comas.config.systems import is_run
    from comas.evaluation.spec import INSTEAD, UNUSED, Plan, limit_of
    from comas.types import UserMistake

    names = [s for s in systems if "=" not in s or is_run(s.split(",")[0])]
    if not names:
        raise UserMistake(
            f"eval needs at least one run or base model, such as: {command()} eval seed"
        )
    ways = _listed(setups)
    if not ways:
        raise UserMistake(
            "--setups names none: one or more of single, vote, debate, autogen, game, a method"
        )
    pairs = [s for s in systems if s not in names]
    asked = _listed(tasks or "")
    for task in asked:
        load_plugin("task", task)  # a name that is none is told before anything is loaded
    for pair in pairs:
        key = pair.partition("=")[0].split(".")[0].strip()
        if key in INSTEAD or key in UNUSED:
            raise UserMistake(
                f"{pair}: {key} is a key of training"
                + (
                    f": here it is {INSTEAD[key]}"
                    if key in INSTEAD
                    else ", and changes nothing in an evaluation: leave it out"
                )
            )
    return Plan(names, asked, ways, limit_of(limit, pairs, "--limit"), seed, pairs, data, equal)


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def sit(ctx: typer.Context, exam: Exam, as_json: bool) -> None:
    """Play what is missing of an evaluation, and show it."""
    found = _watched(exam, as_json)
    _print(ctx, found, as_json)


def show_again(ctx: typer.Context, folder: Path, as_json: bool) -> None:
    """What an evaluation came to when it ended last; before that, what it has cost."""
    from comas.evaluation.runner import SPENT
    from comas.team import spending

    file = folder / "report.json"
    if file.is_file():
        _print(ctx, spending.read(file), as_json)
        return
    found = {"folder": str(folder), "api": spending.records(spending.read(folder / SPENT))}
    if as_json:
        print_json(ctx, found)
        return
    print(f"{folder} has not ended yet: {command()} resume {shlex.quote(str(folder))}")
    _print_costs(found)


def _print(ctx: typer.Context, found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(ctx, found)
    else:
        _show(found)


def _watched(exam: Exam, as_json: bool) -> dict[str, Any]:
    from rich.console import Console

    from comas.team.build import run_sync

    try:
        with watching(Console(stderr=as_json), quiet=as_json) as observer:
            return run_sync(exam.go(observer))
    except KeyboardInterrupt:
        print(
            f"stopped; go on with: {command()} resume {shlex.quote(str(exam.folder))}",
            file=sys.stderr,
        )
        sys.exit(130)


def watching(console: Console, quiet: bool) -> Any:
    """A progress bar on a terminal, a line every ten seconds elsewhere; with `quiet` nothing but on
    a terminal.
    """
    from comas.display import Bar, ExamLines

    return (
        Bar(console)
        if console.is_terminal and not console.is_dumb_terminal
        else ExamLines(console, quiet)
    )


def _show(found: Mapping[str, Any]) -> None:
    from comas.display import clean

    rows = []
    who = dict[str, dict[str, list[str]]]()
    for c in found["cells"]:
        answers = c["right"] + c["wrong"] + c["failed"]
        said = (
            _span(c["accuracy"], c["low"], c["high"], "")
            if c["accuracy"] is not None
            else "nothing judged"
        )
        each = f"{c['tokens'] / max(1, answers):,.0f}"
        rows.append((c["label"], c["task"], c["setup"], f"{c['n']:,}", said, each))
        setups = who.setdefault(c["label"], {}).setdefault(c["team"], [])
        setups += [c["setup"]] if c["setup"] not in setups else []
    names = ("system", "task", "setup", "n", "accuracy, 95 %", "tokens each")
    _print_table("held-out answers", names, rows, whole=("n", "accuracy, 95 %", "tokens each"))
    for system, teams in who.items():
        print(
            f" {clean(system)}: "
            + "; ".join(f"{team} ({', '.join(setups)})" for team, setups in teams.items())
        )
    titles = {
        "systems": "against the first system",
        "setups": "against the first setup",
        "equal_tokens": "at equal tokens",
    }
    for key, title in titles.items():
        if found[key]:
            _print_comparisons(found[key], title)
    print()
    _print_notes(found)
    print(f"all of it: {Path(found['folder']) / 'report.json'}")


def _print_comparisons(found: Sequence[Mapping[str, Any]], title: str) -> None:
    tests = ", ".join(dict.fromkeys(d["test"].split(",")[0] for d in found))
    rows = [
        (
            d["task"],
            _sides(d),
            _span(d["difference"], d["low"], d["high"], "+"),
            _p(d["p"]),
            d["verdict"],
        )
        for d in found
    ]
    names = ("task", "compared", "difference, 95 %", "p", "verdict")
    _print_table(
        f"{title} ({tests}{_family(found)})",
        names,
        rows,
        whole=("difference, 95 %", "p", "verdict"),
    )


def _sides(d: Mapping[str, Any]) -> str:
    """What is subtracted from what, and what both have in common."""
    first = d["first"]
    second = d["second"]
    if first["setup"] == second["setup"]:
        return f"{first['setup']}: {second['label']} minus {first['label']}"
    if first["label"] == second["label"]:
        return f"{first['label']}: {second['setup']} minus {first['setup']}"
    return f"{second['label']} {second['setup']} minus {first['label']} {first['setup']}"


def _print_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str]
) -> None:
    """Within the terminal's width, elsewhere within 80 columns: names are folded where there is no
    room, columns `whole` never.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for at, name in enumerate(names):
        right = name in whole and all(row[at][-1:].isdecimal() for row in rows)
        table.add_column(
            name, no_wrap=name in whole, overflow="fold", justify="right" if right else "left"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    plain = Console(
        file=io.StringIO(), width=max(60, terminal.width if terminal.is_terminal else 80) - 1
    )
    with plain.capture() as drawn:
        plain.print(table)
    print(f"\n{title}")
    print("\n".join(f" {line.rstrip()}" for line in drawn.get().splitlines()))


def _span(mean: float, low: float | None, high: float | None, sign: str) -> str:
    ends = [f"{end:{sign}.3f}" if end is not None else "?" for end in (low, high)]
    return f"{mean:{sign}.3f} [{ends[0]}, {ends[1]}]"


def _print_costs(found: Mapping[str, Any]) -> None:
    from comas.display import clean
    from comas.team.spending import told

    for account in found.get("api", []):
        for line in told({account["host"]: account}):
            print(clean(f"{account['system']}: {line}", 1000))


def _print_notes(found: Mapping[str, Any]) -> None:
    from comas.display import clean

    _print_costs(found)
    for note in found["notes"]:
        print(f"note: {clean(note, 1000)}")


def _p(value: float, sign: str = "") -> str:
    return f"{sign}{value:.4f}" if value >= 0.0001 else "< .0001"
