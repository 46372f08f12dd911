"""`comas eval` and `comas compare`: assemble an evaluation, watch it, show what it came to.

Leaves out: statistics (`report`), playing (`exam`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.stdout import Json, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from comas.exam import Exam, Plan

Tasks = Annotated[str | None, typer.Option(help="Divided by commas: gsm8k,math500 ... (default: the first system's own).")]
Setups = Annotated[str, typer.Option(help="Divided by commas: single,vote,debate,autogen, vote:votes=16, a method, game.")]
Limit = Annotated[int | None, typer.Option(min=0, help="Questions per task, where it has more; 0 is all.", show_default="500")]
Seed = Annotated[int, typer.Option(min=0, help="Of the choice of questions and of all draws.")]
Data = Annotated[str | None, typer.Option(help="A file or folder of questions, instead of the hub or COMAS_DATA.")]
Out = Annotated[str | None, typer.Option(help="The folder; default evals/<time>.")]
Equal = Annotated[bool, typer.Option("--equal-tokens", help="Let the cheaper side of a comparison vote at the other's tokens.")]


def evaluate(
    ctx: typer.Context,
    systems: Annotated[
        list[str], typer.Argument(help="Runs (RUN, RUN@best, RUN@40; run1,run2 is one system), models, TEAM.toml, key=value.")
    ],
    tasks: Tasks = None, setups: Setups = "single", limit: Limit = None, seed: Seed = 0, data: Data = None, out: Out = None,
    equal_tokens: Equal = False, json_: Json = False,
) -> None:
    """How good runs and models are on held-out questions, with what certainty, at what cost; each against the first."""
    from comas.exam import Exam

    sit(ctx, Exam.create(_plan(systems, tasks, setups, limit, seed, data, equal_tokens), out), json_)


def compare(
    ctx: typer.Context, first: Annotated[str, typer.Argument(help="A run, a base model or TEAM.toml.")],
    second: Annotated[str, typer.Argument(help="Another one: is it better?")],
    pairs: Annotated[list[str] | None, typer.Argument(help="key=value of the config, for both.")] = None,
    tasks: Tasks = None, setups: Setups = "single", limit: Limit = None, seed: Seed = 0, data: Data = None, out: Out = None,
    equal_tokens: Equal = False, json_: Json = False,
) -> None:
    """Whether the second of two systems is better than the first, on the same held-out questions."""
    from comas.exam import Exam
    from comas.types import UserMistake

    plan = _plan([first, second, *(pairs or [])], tasks, setups, limit, seed, data, equal_tokens)
    if len(plan.systems) != 2:
        raise UserMistake(f"compare takes two systems, not {len(plan.systems)}; behind them stand pairs of the form key=value")
    exam = Exam.create(plan, out)
    found = _watched(exam, json_)
    if not found["systems"]:
        raise UserMistake(f"{first} and {second}: fewer than two questions were judged for both; nothing can be said")
    if json_:
        cells = [{**d, "p_single": d["p"], "p": d["p_corrected"]} for d in found["systems"]]
        print_json(ctx, {**found, "cells": cells})
        return
    for d in found["systems"]:
        span = _span(d["difference"], d["low"], d["high"], "+")
        print(f"{second} minus {first}, {d['task']}, {d['setup']}: {span} over {d['n']} questions")
        print(f"  p {_p(d['p_corrected'], '= ')} ({d['test']}{_family(found['systems'])}): {d['verdict']}")
    _print_notes(found)


def _family(table: Sequence[Any]) -> str:
    return f", corrected for {len(table)} comparisons" if len(table) > 1 else ""


def _plan(
    systems: Sequence[str], tasks: str | None, setups: str, limit: int | None, seed: int, data: str | None, equal: bool
) -> Plan:
    from comas.config import load_plugin, parse_pair
    from comas.plan import LIMIT, Plan
    from comas.store import run_at
    from comas.types import UserMistake

    names = [s for s in systems if "=" not in s or run_at(s.split(",")[0]) is not None]
    if not names:
        raise UserMistake("eval needs at least one run or base model, such as: comas eval seed")
    ways = _listed(setups)
    if not ways:
        raise UserMistake("--setups names none: one or more of single, vote, debate, autogen, game, a method")
    pairs = [s for s in systems if s not in names]
    if limit is None:
        limit = dict(map(parse_pair, pairs)).get("test_questions", LIMIT)
        if type(limit) is not int:
            raise UserMistake(f"test_questions={limit!r}: a number of questions; 0 is all")
    asked = _listed(tasks or "")
    for task in asked:
        load_plugin("task", task)  # a name that is none is told before anything is loaded
    for key, flag in (("out", "--out"), ("seed", "--seed")):
        if any(p.startswith(f"{key}=") for p in pairs):
            raise UserMistake(f"{key}= is a key of training: here it is {flag}")
    return Plan(names, asked, ways, limit or None, seed, pairs, data, equal)


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def sit(ctx: typer.Context, exam: Exam, as_json: bool) -> None:
    """Play what is missing of an evaluation, and show it."""
    found = _watched(exam, as_json)
    _print(ctx, found, as_json)


def show_again(ctx: typer.Context, folder: Path, as_json: bool) -> None:
    """What an evaluation came to when it ended last; before that, what it has cost."""
    from comas import spending
    from comas.exam import SPENT

    file = folder / "report.json"
    if file.is_file():
        _print(ctx, spending.read(file), as_json)
        return
    found = {"folder": str(folder), "api": spending.records(spending.read(folder / SPENT))}
    if as_json:
        print_json(ctx, found)
        return
    print(f"{folder} has not ended yet: comas resume {shlex.quote(str(folder))}")
    _print_costs(found)


def _print(ctx: typer.Context, found: Mapping[str, Any], as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        print_json(ctx, found)
    else:
        console = Console()
        _show(console if console.is_terminal else Console(width=200), found)  # a file has no edge


def _watched(exam: Exam, as_json: bool) -> dict[str, Any]:
    from rich.console import Console

    from comas.team import run_sync

    try:
        with watching(Console(stderr=as_json), quiet=as_json) as observer:
            return run_sync(exam.go(observer))
    except KeyboardInterrupt:
        print(f"stopped; go on with: comas resume {shlex.quote(str(exam.folder))}", file=sys.stderr)
        sys.exit(130)


def watching(console: Console, quiet: bool) -> Any:
    """A progress bar on a terminal, a line every ten seconds elsewhere; with `quiet` nothing but on a terminal."""
    from comas.live import Bar, ExamLines

    return Bar(console) if console.is_terminal and not console.is_dumb_terminal else ExamLines(console, quiet)


def _show(console: Console, found: Mapping[str, Any]) -> None:
    names = ("system", "task", "setup", "who", "n", "accuracy, 95 %", "failed (bounds)", "tokens: each", "all")
    table = _table("held-out answers", names, right=("n", "tokens: each", "all"))
    for c in found["cells"]:
        answers = c["right"] + c["wrong"] + c["failed"]
        low, high = c["bounds"]
        failed = f"{c['failed']} ({low:.3f} to {high:.3f})" if c["failed"] else "0"
        said = _span(c["accuracy"], c["low"], c["high"], "") if c["accuracy"] is not None else "nothing judged"
        each = f"{c['tokens'] / max(1, answers):,.0f}"
        table.add_row(_plain(c["label"]), c["task"], c["setup"], c["team"], str(c["n"]), said, failed, each, f"{c['tokens']:,}")
    console.print(table)
    titles = {"systems": "against the first system", "setups": "against the first setup", "equal_tokens": "at equal tokens"}
    for key, title in titles.items():
        if found[key]:
            console.print(_comparisons(found[key], title))
    _print_notes(found)
    print(f"all of it: {Path(found['folder']) / 'report.json'}")


def _comparisons(found: Sequence[Mapping[str, Any]], title: str) -> Any:
    table = _table(f"{title}{_family(found)}", ("task", "second", "minus", "difference, 95 %", "p", "test", "tokens", "verdict"))
    for d in found:
        second, first = (f"{_plain(d[k]['label'])} {d[k]['setup']}" for k in ("second", "first"))
        span = _span(d["difference"], d["low"], d["high"], "+")
        costs = " : ".join(f"{t:,.0f}" for t in reversed(d["tokens"]))
        table.add_row(d["task"], second, first, span, _p(d["p_corrected"]), d["test"].split(",")[0], costs, d["verdict"])
    return table


def _table(title: str, names: Sequence[str], right: Sequence[str] = ()) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table


def _span(mean: float, low: float | None, high: float | None, sign: str) -> str:
    ends = [f"{end:{sign}.3f}" if end is not None else "?" for end in (low, high)]
    return f"{mean:{sign}.3f} [{ends[0]}, {ends[1]}]"


def _print_costs(found: Mapping[str, Any]) -> None:
    from comas.live import clean
    from comas.spending import told

    for account in found.get("api", []):
        for line in told({account["host"]: account}):
            print(clean(f"{account['system']}: {line}", 1000))


def _print_notes(found: Mapping[str, Any]) -> None:
    from comas.live import clean

    _print_costs(found)
    for note in found["notes"]:
        print(f"note: {clean(note, 1000)}")


def _plain(name: str) -> str:
    """A name without markup."""
    from rich.markup import escape

    return escape(name)


def _p(value: float, sign: str = "") -> str:
    return f"{sign}{value:.4f}" if value >= 0.0001 else "< .0001"
