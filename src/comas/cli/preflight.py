"""`comas preflight`: will it help on my model and my questions?

Leaves out: asking and figures (`comas.evaluation.preflight`).
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from comas.cli.output import Json, print_json, print_note, split
from comas.config.systems import is_run
from comas.display import clean, watcher
from comas.evaluation.preflight import ANSWERS_FIRST, Advice, Preflight, run_preflight
from comas.exit_codes import STOPPED
from comas.models.sources import is_shipped, team_file
from comas.program import command
from comas.stats import Interval, spelt

Asked = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BASE]... [KEY=VALUE]...",
        help="Bases, one agent each where there are several; or a run, an export, a TOML file.",
    ),
]
Questions = Annotated[int, typer.Option(min=1, help="Questions of the training split, at most.")]
Answers = Annotated[int, typer.Option(min=2, help="Answers to each.")]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Ask as many of them as fit into so many minutes."),
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Read no labels.")]


def preflight(
    ctx: typer.Context,
    arguments: Asked = None,
    questions: Questions = 48,
    answers: Answers = 8,
    minutes: Minutes = None,
    no_labels: NoLabels = False,
    json_: Json = False,
) -> None:
    """Say before any training which methods can learn.

    The base answers questions of the task several times, and judges its answers.
    """
    bases, settings = split(arguments)
    with watcher(json_) as hook:
        result = run_preflight(bases, settings, questions, answers, not no_labels, hook, minutes)
    if json_:
        print_json(ctx, result.record())
    else:
        _show(result)
        keys = [argument for argument in arguments or () if argument not in bases]
        if training := training_with(result.methods, bases, keys):
            print(f"next: {command()} {training}")
    if result.interrupted:
        print_note(f"interrupted: these are the figures of {result.questions} questions")
        sys.exit(STOPPED)


def training_with(
    methods: Sequence[Advice], bases: Sequence[str], keys: Sequence[str]
) -> str | None:
    """Write the arguments of the training that is advised most, without labels; None where nothing
    is, where the team is not copies of one model, or where `keys` name another method or preset
    than the one that was measured.
    """
    if len(bases) != 1 or team_file(bases[0]) is not None or is_run(bases[0]):
        return None
    verdicts = {advice.method: advice.verdict for advice in methods}
    if verdicts.get(f"comas {ANSWERS_FIRST}") == "can learn":
        measured = {"method": "comas", "preset": "p_true"}
        chosen = ["method=comas", "agents=2"]
        if is_shipped(bases[0]):  # others have it by default
            chosen.append("preset=p_true")
    elif verdicts.get("ttrl") == "may learn":
        measured = {"method": "ttrl", "preset": "stable"}
        chosen = ["method=ttrl", "agents=1"]
    else:
        return None
    if not is_shipped(bases[0]):
        chosen.append("lr=1e-4")  # measured for 0.5B (docs/pretrained.md)
    given = {key.partition("=")[0].partition(".")[0] for key in keys}
    if any(key in given and f"{key}={value}" not in keys for key, value in measured.items()):
        return None
    own = [pair for pair in chosen if pair.partition("=")[0] not in given]
    return shlex.join(["train", f"base={bases[0]}", *keys, *own])


def _show(result: Preflight) -> None:
    console = Console()
    console.width = max(console.width, 150)  # the table does without breaks
    bases = ", ".join(result.team)
    console.print(
        f"{bases} on {result.task}: {result.questions} questions, {result.answers} answers each",
        soft_wrap=True,
        markup=False,
    )
    facts = Table(show_header=False, box=None)
    facts.add_row("answers that can be read", f"{result.readable:.2f}")
    facts.add_row("cut at the token limit", f"{result.cut:.2f}")
    compared = (
        f"{result.distinct:.1f} of {result.answers}; where it is 1, nothing is left to compare"
    )
    facts.add_row("different answers per question", compared)
    facts.add_row("held by the majority", f"{result.majority:.2f}")
    facts.add_row("questions with dissent", f"{result.dissent:.2f}")
    if result.truth is not None:
        facts.add_row("right, by the labels: one answer", f"{result.truth['single']:.2f}")
        facts.add_row("right, by the labels: the majority", f"{result.truth['majority']:.2f}")
    minutes = result.step_minutes
    minutes_text = "not known" if math.isnan(minutes) else f"{minutes:.1f}"
    facts.add_row("minutes to answer a step eight times", minutes_text)
    if result.tokens and result.seconds:
        speed = f"{result.tokens / result.seconds:,.0f}"
        facts.add_row("tokens per second, measured here", speed)
    console.print(facts)
    if result.readable < 1.0:
        console.print(f"a reply: {clean(result.example)[:200]!r}", markup=False, soft_wrap=True)
    heads = ["verdict by", "n", "unreadable", "majority", "rarest", "prefers, 99 %", "J, 95 %"]
    heads += ["r squared"]
    heads += ["AUC", "right, 99 %"] if result.truth is not None else []
    table = Table(
        title="how far a work of the majority is accepted, and one of the rarest other answer"
    )
    for head in heads:
        table.add_column(head, no_wrap=True)
    for row in result.judges:
        cells = [row.mode, str(row.n), f"{row.unreadable:.2f}"]
        cells += [_number(row.accepts_majority), _number(row.accepts_rarest)]
        cells += [_span(row.prefers), _span(row.j), _number(row.information)]
        if result.truth is not None:
            cells += [_number(row.against_truth), _span(row.prefers_right)]
        table.add_row(*cells)
    console.print(table)
    console.print("what can learn (options of comas go with preset=stable):", soft_wrap=True)
    for row in result.methods:
        console.print(f"{row.method}: {row.verdict}: {row.why}", markup=False, soft_wrap=True)
    for note in result.notes:
        print_note(note)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _span(interval: Interval | None) -> str:
    return "-" if interval is None else spelt(*interval[:3], ".2f")
