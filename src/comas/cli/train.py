"""`comas train` and `comas resume`: read the config, train, watch.

Leaves out: training (`training.start`), what a run came to (`cli.summary`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli import evaluate
from comas.cli.output import Json, Outlet, print_json, print_stopped
from comas.cli.summary import print_summary, result_json
from comas.exit_codes import ALARMED, CLOSED, STOPPED

if TYPE_CHECKING:
    from comas.config.schema import Config
    from comas.hooks import Hook
    from comas.training.result import Result

Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [KEY=VALUE]...", help="CONFIG.toml steps=20 ... (see docs/config.md)"
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [KEY=VALUE]...",
        help="A run or evaluation (default: the latest run), steps=300 ...",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Measure memory and time with a few discussions; write nothing."
    ),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Of a dry run also the resolved config."),
]


def train(
    ctx: typer.Context,
    arguments: Pairs = None,
    json_: Json = False,
    dry_run: DryRun = False,
    full: Full = False,
) -> None:
    """Train a team; without arguments the embedded default."""
    from comas.training.start import train_async

    config = read_config(arguments)
    if dry_run:
        _dry_run(ctx, config, json_, full)
        return
    _watch(ctx, lambda hook: train_async(config, hook), json_)


def read_config(arguments: list[str] | None) -> Config:
    """Read `[CONFIG] [KEY=VALUE]...`."""
    from comas.config.schema import read

    pairs = list(arguments or [])
    path = None
    if pairs and "=" not in pairs[0]:
        path = pairs.pop(0)
    return read(path, pairs)


def resume(ctx: typer.Context, arguments: Changes = None, json_: Json = False) -> None:
    """Go on with a run from its last commit, or with an evaluation; steps, tokens, budgets and
    bounds of memory may change.
    """
    from comas.evaluation.folder import PLAN
    from comas.evaluation.runner import Exam
    from comas.program import named_or_latest
    from comas.training.start import resume_async

    changes = list(arguments or [])
    name = None
    if changes and ("=" not in changes[0] or Path(changes[0]).is_dir()):
        name = changes.pop(0)
    folder = named_or_latest(name)
    if (Path(folder) / PLAN).is_file():
        exam = Exam.open(folder, changes)
        evaluate.go_on(ctx, exam, json_)
        return
    _watch(ctx, lambda hook: resume_async(folder, hook, changes=changes), json_)


def _watch(
    ctx: typer.Context, run: Callable[[Hook], Coroutine[Any, Any, Result]], as_json: bool
) -> None:
    """Let a run go on, show how it goes, and what it came to."""
    from comas.display import watcher
    from comas.team.build import run_sync

    display = watcher(as_json)
    outlet = Outlet(display)
    try:
        with display:
            result = run_sync(run(outlet))
    except KeyboardInterrupt:
        # what a second Ctrl-C cut short is no news
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        with suppress(OSError):  # the terminal may be gone
            print_stopped(display.path)
        sys.exit(CLOSED if outlet.gone else STOPPED)
    if as_json:
        print_json(ctx, result_json(result))
    else:
        print_summary(display.console, result)
    if outlet.gone and not as_json:  # the console is silent by now
        sys.exit(CLOSED)
    if result.ended_by_alarm:
        sys.exit(ALARMED)


def _dry_run(ctx: typer.Context, config: Config, as_json: bool, full: bool) -> None:
    import tomli_w

    from comas.cli.output import print_note
    from comas.storage.run import without_none
    from comas.team.build import run_sync
    from comas.training.dry_run import dry_run

    found = run_sync(dry_run(config, print_note))
    if as_json:
        print_json(ctx, found.data())
        return
    print("\n".join(found.lines()), end="\n\n")
    print(tomli_w.dumps(without_none(found.config.model_dump())) if full else "config: --full")
