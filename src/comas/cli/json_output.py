"""What goes to stdout with `--json`: one object on the last line, and nothing else.

Leaves out: what is shown to people.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.figures import figures_of

if TYPE_CHECKING:
    from comas.stats import Interval
    from comas.training.result import Result


def _reserve(ctx: typer.Context, wanted: bool) -> bool:
    """With `--json`, stdout is for the object alone: whatever else is printed, by a user's method
    too, goes to stderr.
    """
    if wanted:
        ctx.obj = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return wanted


Json = Annotated[
    bool,
    typer.Option("--json", callback=_reserve, help="The last line of stdout is one JSON object."),
]


def print_json(ctx: typer.Context, record: Any) -> None:
    """The object."""
    print(json.dumps(record), file=ctx.obj, flush=True)


def interval_json(found: Interval | None) -> dict[str, Any] | None:
    """JSON has no infinity: an open end is null."""
    if found is None:
        return None
    return {key: v if math.isfinite(v) else None for key, v in found._asdict().items()}


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
        "notes": _notes(steps),
        "alarms": result.alarms,
        "ended_by_alarm": result.ended_by_alarm,
        "api": run.spent(),
    }


def _notes(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What the first and the last step say of what keeps them from teaching anything."""
    ends = {"first": steps[:1], "last": steps[-1:]}
    return {
        name: [note for metrics in end for note in metrics.get("notes", [])]
        for name, end in ends.items()
    }
