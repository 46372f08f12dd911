"""What a run came to: the last lines of `comas train`, and `comas report` with its curves.

Leaves out: what an evaluation came to (`cli.evaluate`), how each figure is computed
(`training.metrics`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli import evaluate, view
from comas.cli.output import Json, interval_json, print_json
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
Means = dict[str, float]
Figures = dict[str, dict[str, Means]]
"""Metric -> role (or `step`, where it is of the whole step) -> name -> mean over steps."""
BY_ROLE = ("quality", "judges")
WHOLE = ("revisions", "coverage", "posed")
SHOWN = {
    "quality": ("accuracy", "toxicity", "gap", "auc"),
    "judges": ("balanced", "accepts_right", "accepts_wrong"),
    "revisions": ("before", "after", "confidence", "critique"),
    "coverage": ("pass@1", "pass@4", "pass@8", "pass@16", "distinct", "entropy"),
    "posed": ("valid", "distinct", "novelty", "solvable", "frontier"),
}
"""Metric -> the figures that a person is shown."""
TITLES = {
    "quality": "pay of {role}",
    "judges": "judges ({role})",
    "revisions": "revisions",
    "coverage": "answers",
    "posed": "posed questions",
}


def figures_of(metrics: Sequence[Mapping[str, Any]]) -> Figures:
    """Means over the last steps, of each figure over those that have it."""
    tables: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for step in metrics[-LAST:]:
        for metric, role, figures in _tables(step):
            of_role = tables.setdefault((metric, role), [])
            of_role.append(figures)
    found: Figures = {}
    for (metric, role), of_role in tables.items():
        roles = found.setdefault(metric, {})
        roles[role] = _means(of_role)
    return found


def _means(tables: Sequence[Mapping[str, float]]) -> Means:
    """Of each figure over the steps that have it."""
    means: Means = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [table[name] for table in tables if name in table]
        means[name] = sum(values) / len(values)
    return means


def _tables(step: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """(metric, role, its figures) of a line of metrics.jsonl."""
    for metric in BY_ROLE:
        for role, figures in step.get(metric, {}).items():
            yield metric, role, figures
    for metric in WHOLE:
        if metric in step:
            yield metric, "step", step[metric]


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
            title = TITLES[metric].format(role=role)
            if shown:
                yield f"  {title}: {shown}"


DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: four rows of two dots."""

Points = Sequence[tuple[float, float]]
"""Places on the x axis, in ascending order, and values."""
HEIGHT = 2
"""Lines of a curve."""
LABEL = 24
"""Columns of its name, and of its scale behind it."""
WIDEST = 100
"""Columns of a line at most: further ones show nothing more."""
ACCURACIES = {"validation": "mean", "pay": "accuracy"}
"""Metric -> its key that is an accuracy."""
CURVES = {"validation": "accuracy, validation", "pay": "accuracy, training"}


def curve_lines(metrics: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """A curve for each figure that at least two steps have, with its lowest and highest value."""
    series = {name: points for name, points in _series(metrics).items() if len(points) > 1}
    if not series:
        return
    yield f"over {len(metrics)} steps:"
    columns = max(8, min(width, WIDEST) - LABEL - 10)
    for name, points in series.items():
        values = [value for _, value in points]
        low = min(values)
        high = max(values)
        lines = curve(points, columns, HEIGHT, low, high if high > low else low + 1)
        for place, line in enumerate(lines):
            title = name if place == 0 else ""
            value = high if place == 0 else low
            yield f"  {title:{LABEL}s} {value:6.3f} {line}"


def _series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Name -> (steps that lie behind, value), accuracies first."""
    series: dict[str, list[tuple[float, float]]] = {title: [] for title in CURVES.values()}
    for line in metrics:
        step = line["step"] + 1
        for metric, key in ACCURACIES.items():
            value = (line.get(metric) or {}).get(key)
            if value is not None:
                series[CURVES[metric]].append((step, value))
        for role, reward in line.get("rewards", {}).items():
            points = series.setdefault(f"reward, {role}", [])
            points.append((step, reward))
    return dict(series)


def curve(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """Draw a line through the points on `width` x `height` characters, of 2 x 4 dots each; all of
    the x axis is shown.
    """
    columns = 2 * width
    rows = 4 * height
    cells = [[0] * width for _ in range(height)]
    before: int | None = None
    for column, value in _sampled(points, columns):
        row = round((1 - _share(value, low, high)) * (rows - 1))
        if before is None or before == row:
            drawn = range(row, row + 1)
        elif row < before:
            drawn = range(row, before)
        else:
            drawn = range(before + 1, row + 1)
        for dot in drawn:
            bit = DOTS[dot % 4][column % 2]
            cells[dot // 4][column // 2] |= bit
        before = row
    return ["".join(chr(0x2800 + bits) for bits in line) for line in cells]


def _sampled(points: Points, columns: int) -> list[tuple[int, float]]:
    """The value at every column from the first point on, between two points on the line that joins
    them.
    """
    if not points:
        return []
    if len(points) == 1:
        return [(0, points[0][1])]
    start = points[0][0]
    step = (points[-1][0] - start) / (columns - 1)
    sampled: list[tuple[int, float]] = []
    place = 0
    for column in range(columns):
        x = start + column * step
        while place < len(points) - 2 and points[place + 1][0] < x:
            place += 1
        x0, y0 = points[place]
        x1, y1 = points[place + 1]
        share = _share(x, x0, x1) if x1 > x0 else 1.0
        sampled.append((column, y0 + share * (y1 - y0)))
    return sampled


def _share(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))
