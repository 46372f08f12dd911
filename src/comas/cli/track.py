"""`comas track`: send a run to trackers, also one that has ended, was killed or still goes on.

Leaves out: what is sent (`trackers.reader`), attaching trackers to a run (`training.attached`).
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli.json_output import Json, print_json
from comas.cli.stderr import print_error
from comas.exit_codes import MISTAKE
from comas.types import UserMistake

if TYPE_CHECKING:
    from comas.trackers.reader import Feed

EVERY = 2.0
"""Seconds after which is looked whether there is more."""
PATIENCE = 60.0
"""Seconds to wait for the tracker of the process before, which may still be sending."""

Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Go on with what is committed later, until stdin ends or Ctrl-C."
    ),
]


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
    follow: Follow = False,
    json_: Json = False,
) -> None:
    """Send a run's steps to trackers: those that are committed, and that they do not have yet."""
    from comas.config.builders import check_trackers, load_builder
    from comas.storage.run import Run
    from comas.trackers.reader import Feed

    opened = Run.open(run)
    names = list(dict.fromkeys(trackers or opened.config().get("track", [])))
    if not names:
        raise UserMistake(f"{opened.path} has no tracker of its own: name one behind it")
    if follow and len(names) > 1:
        raise UserMistake(f"--follow takes one tracker, and here are {', '.join(names)}")
    check_trackers(names)
    modules = [load_builder("trackers", name, "track") for name in names]
    feeds = [Feed(opened, name, module.open) for name, module in zip(names, modules, strict=True)]
    rows = [_send(feed, follow) for feed in feeds]
    if json_:
        print_json(ctx, {"run": str(opened.path), "trackers": rows})
    else:
        for row in rows:
            _print(row)
    if any(row["failed"] for row in rows):
        sys.exit(MISTAKE)


def _send(feed: Feed, follow: bool) -> dict[str, Any]:
    """Send what there is, and where it is followed what comes; one that fails ends no other's
    work.
    """
    row: dict[str, Any] = {"tracker": feed.name, "measurements": 0, "failed": None}
    try:
        row["measurements"] = _follow(feed) if follow else feed.catch_up()
        feed.close()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told in a line
        reason = (
            str(error) if isinstance(error, UserMistake) else f"{type(error).__name__}: {error}"
        )
        row["failed"] = reason
        print_error(f"track {feed.name}: {reason}")
    finally:
        feed.release()
    row["steps"] = max(0, feed.sent.get("tokens", 0))
    return row


def _follow(feed: Feed) -> int:
    """Look again and again until stdin ends, and once more then."""
    ended = threading.Event()
    threading.Thread(target=_await_end_of_input, args=(ended,), daemon=True).start()
    sent = feed.catch_up(PATIENCE)
    while not ended.wait(EVERY):
        sent += feed.catch_up(PATIENCE)
    return sent + feed.catch_up(PATIENCE)


def _await_end_of_input(ended: threading.Event) -> None:
    # without Python's buffer, whose lock a thread that waits here would hold for ever
    while os.read(sys.stdin.fileno(), 1024):
        pass
    ended.set()


def _print(row: dict[str, Any]) -> None:
    if row["failed"]:
        return
    count = row["measurements"]
    news = f"{count} measurements sent" if count else "nothing new"
    print(f"{row['tracker']}: {news}; it has {row['steps']} steps")
