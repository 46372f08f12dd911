"""What a run came to: the last lines of `comas train`, and `comas report`.

Leaves out: what an evaluation came to (`cli.evaluate`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli import evaluate, view
from comas.cli.curves import curve_lines
from comas.cli.figures import figure_lines
from comas.cli.json_output import Json, print_json, result_json
from comas.program import command

if TYPE_CHECKING:
    from rich.console import Console

    from comas.storage.run import Run
    from comas.training.result import Result

Name = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run or an evaluation; default: the latest run."),
]


Html = Annotated[
    str | None, typer.Option("--html", help="Write it as a page instead, as `comas view` does.")
]


def report(ctx: typer.Context, name: Name = None, html: Html = None, json_: Json = False) -> None:
    """What a run or an evaluation has come to so far; nothing is computed."""
    from rich.console import Console

    from comas.evaluation.folder import PLAN
    from comas.program import named_or_latest
    from comas.storage.run import Run
    from comas.training.result import result_of

    folder = Path(named_or_latest(name))
    if html is not None:
        view.view(ctx, [str(folder)], html, json_=json_)
        return
    if (folder / PLAN).is_file():
        evaluate.show_again(ctx, folder, json_)
        return
    result = result_of(Run.open(folder), 0.0)
    if json_:
        print_json(ctx, result_json(result))
    else:
        print_summary(Console(), result, curves=True)


def print_summary(console: Console, result: Result, curves: bool = False) -> None:
    """Print accuracies, with `curves` how they and the rewards went, costs, and what may be done
    next.
    """
    from comas.storage.run import Run
    from comas.team.spending import told

    run = Run.open(result.run)
    metrics = list(run.metrics())
    drawn = curves and not console.options.ascii_only  # whose encoding has no signs for them
    lines = [
        "",
        "held-out accuracy, mean over agents, 95 % interval over questions:",
        *_accuracies(result),
        *(curve_lines(metrics, console.width) if drawn else ()),
        *figure_lines(metrics),
        *(f"alarm in step {alarm['step'] + 1}: {alarm['text']}" for alarm in result.alarms),
        _cost(run, result),
        *told(run.spent()),
        f"run:  {result.run}",
        *(f"next: {command()} {rest}" for rest in _next(run, result)),
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _accuracies(result: Result) -> Iterator[str]:
    for name, accuracy in result.accuracy.items():
        yield f"  {name:7s} {accuracy if accuracy else 'not measured'}"
    if result.gain:
        mean, low, high, _ = result.gain
        yield f"  gain    {mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def _cost(run: Run, result: Result) -> str:
    from comas.display import span

    total = 0.0
    spent: dict[str, float] = {}
    for metrics in run.metrics():
        total += metrics["seconds"]
        for kind, seconds in metrics["spent"].items():
            spent[kind] = spent.get(kind, 0.0) + seconds
    parts = ", ".join(f"{kind} {span(seconds)}" for kind, seconds in spent.items())
    amount = f"{result.steps} steps, {result.tokens:,} generated tokens"
    cost = f"cost: {amount}, {span(total)} ({parts})"
    if not result.seconds:
        return cost
    return f"{cost}; this process, with measurements: {span(result.seconds)}"


def _next(run: Run, result: Result) -> Iterator[str]:
    """Commands that a reader of the summary may want."""
    folder = shlex.quote(str(run.path))
    config = run.config()
    yield f"view {folder}"
    yield f"show {folder}"
    yield f"play {folder}"
    yield f"eval {folder}"
    yield f"export {folder} my-team"
    if result.ended_by_alarm:
        yield f"resume {folder} on_alarm=warn"
    elif result.steps >= config["steps"]:
        if config.get("schedule", "constant") == "constant":  # others have fallen to their end
            yield f"resume {folder} steps={2 * max(1, result.steps)}"
    elif config.get("tokens") is not None:
        yield f"resume {folder} tokens={2 * config['tokens']}"
    else:
        yield f"resume {folder}"
    if config["task"] == "pick" and _bases(config) == {"seed"}:
        yield "train method=ttrl"
        yield "train preset=paper"


def _bases(config: dict[str, Any]) -> set[str]:
    """The base names that hosts and agents of a config name."""
    hosts = {host["base"] for host in config["hosts"].values()}
    return hosts | {agent["base"] for agent in config["agents"].values() if "base" in agent}
