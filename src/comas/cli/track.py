"""`comas track`: send a run that is over, or was stopped, to trackers.

Leaves out: what is sent (`trackers.tracker`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from comas.cli.output import Json, print_error, print_json
from comas.exit_codes import MISTAKE
from comas.types import UserMistake


def track(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="A run.")],
    trackers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACKER]...",
            help="trackio, wandb, tensorboard, mlflow or ./file.py; default: the run's own.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Send a run's steps to trackers: those that are committed, and that they do not have yet."""
    from comas.config.plugins import check_trackers, load_builder
    from comas.storage.run import Run
    from comas.trackers.tracker import Tracker

    opened = Run.open(run)
    names = list(dict.fromkeys(trackers or opened.config().get("track", [])))
    if not names:
        raise UserMistake(f"{opened.path} has no tracker of its own: name one behind it")
    check_trackers(names)
    opened.lock()
    marker = opened.marker()
    if marker is None:
        raise UserMistake(f"{opened.path} has committed nothing yet: there is nothing to send")
    rows: list[dict[str, Any]] = []
    for name in names:
        tracker = Tracker(name, load_builder("trackers", name, "track").open)
        tracker.begin(opened, None, marker["step"])
        tracker.ended(None)
        label = Path(name).name
        steps = tracker.sent.get("tokens", 0)
        row = {"tracker": label, "measurements": tracker.count, "failed": tracker.failed}
        rows.append({**row, "steps": steps})
        if tracker.failed is not None:
            print_error(f"track {label}: {tracker.failed}")
        elif not json_:
            news = f"{tracker.count} measurements sent" if tracker.count else "nothing new"
            print(f"{label}: {news}; it has {steps} steps")
    if json_:
        print_json(ctx, {"run": str(opened.path), "trackers": rows})
    if any(row["failed"] for row in rows):
        sys.exit(MISTAKE)
