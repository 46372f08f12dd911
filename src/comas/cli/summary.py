"""What a run came to: the last lines of `comas train`, and `comas report`.

Leaves out: curves (`comas view`), what an evaluation came to (`cli.evaluate`), how each figure is
computed (`training.metrics`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli import evaluate
from comas.cli.output import Json, interval_json, print_json
from comas.program import command
from comas.stats import spelt

if TYPE_CHECKING:
    from rich.console import Console

    from comas.storage.run import Run
    from comas.training.result import Result

Name = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run or an evaluation; default: the latest run."),
]


def report(ctx: typer.Context, name: Name = None, json_: Json = False) -> None:
    """What a run or an evaluation has come to so far; nothing is computed."""
    from rich.console import Console

    from comas.evaluation.folder import PLAN
    from comas.program import named_or_latest
    from comas.storage.run import Run
    from comas.training.result import result_of

    folder = Path(named_or_latest(name))
    if (folder / PLAN).is_file():
        evaluate.show_again(ctx, folder, json_)
        return
    result = result_of(Run.open(folder), 0.0)
    if json_:
        print_json(ctx, result_json(result))
    else:
        print_summary(Console(), result)


def print_summary(console: Console, result: Result) -> None:
    """Print accuracies, figures against labels, costs, and what may be done next."""
    from comas.storage.run import Run
    from comas.team.spending import told

    run = Run.open(result.run)
    lines = [
        "",
        "held-out accuracy, mean over agents, 95 % interval over questions:",
        *(f"  {name:7s} {found or 'not measured'}" for name, found in result.accuracy.items()),
        *([f"  gain    {spelt(*result.gain[:3], '+.3f')}"] if result.gain else []),
        *_fallen(run, result),
        *figure_lines(list(run.metrics())),
        *(f"alarm in step {alarm['step'] + 1}: {alarm['text']}" for alarm in result.alarms),
        _cost(run, result),
        *told(run.spent()),
        f"run:  {result.run}",
        *(f"next: {command()} {rest}" for rest in _next(run, result)),
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


FALLEN = 0.1
"""By how much an agent's accuracy has to fall for the agents to be told apart."""


def _fallen(run: Run, result: Result) -> Iterator[str]:
    """Each agent's accuracy before and after, where that of one fell: the mean may hide it."""
    from comas.evaluation.accuracy import by_agent

    records = [run.read_eval(name) for name in ("before", "after")]
    if result.gain is None or None in records:
        return
    before, after = (by_agent(record["answers"]) for record in records if record)
    both = sorted(before.keys() & after.keys())
    if len(both) > 1 and any(before[agent] - after[agent] >= FALLEN for agent in both):
        told = ", ".join(f"{agent} {before[agent]:.3f} to {after[agent]:.3f}" for agent in both)
        yield f"  an agent fell: {told}"


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
    return f"cost: {amount}, {span(total)} ({parts})"


def _next(run: Run, result: Result) -> Iterator[str]:
    """The three commands that fit what was done: look at it, measure it, and go on with what was
    stopped or show what it learnt.
    """
    folder = shlex.quote(str(run.path))
    config = run.config()
    yield f"view {folder}"
    yield f"eval {folder}"
    if result.ended_by_alarm:
        yield f"resume {folder} on_alarm=warn"
    elif result.steps >= config["steps"]:
        yield f"export {folder} my-team"
    elif config.get("tokens") is not None:
        yield f"resume {folder} tokens={2 * config['tokens']}"
    else:
        yield f"resume {folder}"


def result_json(result: Result) -> dict[str, Any]:
    """A run: `seconds` are of this process, null of a report, which computes nothing;
    `step_seconds` of all steps so far, `last_steps` the means of their figures against labels.
    """
    from comas.storage.run import Run

    run = Run.open(result.run)
    steps = list(run.metrics())
    seconds = [metrics["seconds"] for metrics in steps]
    return {
        "run": str(result.run),
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 3) if result.seconds else None,
        "step_seconds": round(math.fsum(seconds), 3),
        "accuracy": {name: interval_json(i) for name, i in result.accuracy.items()},
        "gain": interval_json(result.gain),
        "last_steps": figures_of(steps),
        "notes": {
            name: [note for metrics in end for note in metrics.get("notes", [])]
            for name, end in (("first", steps[:1]), ("last", steps[-1:]))
        },
        "alarms": result.alarms,
        "ended_by_alarm": result.ended_by_alarm,
        "api": run.spent(),
    }


LAST = 10
"""Steps that are averaged."""
SHOWN = {
    "pay": ("accuracy", "precision", "recall", "auc"),
    "judges": ("balanced", "accepts_right", "accepts_wrong"),
    "coverage": ("distinct",),
    "posed": ("valid", "distinct", "solvable", "frontier"),
}
"""Metric -> the figures that a person is shown."""


def figures_of(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Metric -> role (or `step`, where it is of the whole step) -> figure -> mean over those of the
    last steps that have it.
    """
    values: dict[tuple[str, str, str], list[float]] = {}
    for step in metrics[-LAST:]:
        for metric in SHOWN:
            table = step.get(metric, {})
            for role, figures in (table if metric == "judges" else {"step": table}).items():
                for name, value in figures.items():
                    if value is not None:
                        values.setdefault((metric, role, name), []).append(value)
    means: dict[str, dict[str, dict[str, float]]] = {}
    for (metric, role, name), each in values.items():
        of_role = means.setdefault(metric, {}).setdefault(role, {})
        of_role[name] = sum(each) / len(each)
    return means


def figure_lines(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures in words, a line for each metric and role; nothing where there is none."""
    figures = figures_of(metrics)
    if not figures:
        return
    steps = min(LAST, len(metrics))
    over = "the last step" if steps == 1 else f"the last {steps} steps"
    yield f"{over}, against labels where there are any (no method sees these figures):"
    for metric, roles in figures.items():
        for role, of_role in roles.items():
            names = [name for name in SHOWN[metric] if name in of_role]
            shown = ", ".join(f"{name} {of_role[name]:.2f}" for name in names)
            if shown:
                yield f"  {metric}{'' if role == 'step' else f' of {role}'}: {shown}"
